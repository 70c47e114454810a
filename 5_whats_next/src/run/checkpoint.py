"""Checkpoints that are whole or not there."""

import os
from pathlib import Path
from typing import Any

import torch

from src.run.errors import UserError


def save_atomic(state: dict[str, Any], path: Path) -> None:
    """Write ``state``: a crash at any moment leaves the old file or the new one, never half of one.

    Raises OSError or RuntimeError if the disk is full; the old file is still there then.
    """
    # In the same folder, because a rename is atomic only within one filesystem.
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        # The content has to reach the disk before the name does: otherwise a power cut can leave an
        # empty file under the right name.
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU. Raises UserError if it is missing or damaged."""
    try:
        # A checkpoint is a pickle: without weights_only, loading it runs whatever code is inside.
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged file can fail in the zip reader or anywhere below.
        reason = f"{type(error).__name__} {error}".splitlines()[0]
        raise UserError(f"cannot resume from {path}: {reason}") from error
