"""Checkpoints of Lightning that are whole or not there, and that a resume can read."""

import io
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.serialization import get_unsafe_globals_in_checkpoint

from src.checkpoint import read_checkpoint, save_atomic
from src.errors import UserError


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes and reads checkpoints as chapter 0 does.

    Lightning stages in TMPDIR and moves: where that is another filesystem, a crash while moving
    destroys the last checkpoint. https://github.com/Lightning-AI/pytorch-lightning/issues/21253
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint. Raises UserError if no resume could read it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unchecked = path.with_name(f"{path.name}.unchecked")
        save_atomic(checkpoint, unchecked)
        # Found now, and not by a resume after days: weights_only=True reads Python's own types.
        if types := get_unsafe_globals_in_checkpoint(unchecked):
            unchecked.unlink()
            raise UserError(
                f"no resume could read this checkpoint: {unreadable(checkpoint)} contain "
                f"{', '.join(types)}; give save_hyperparameters() plain numbers and texts"
            )
        unchecked.replace(path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint. Raises UserError if it is damaged."""
        return read_checkpoint(Path(path))


def unreadable(checkpoint: dict[str, Any]) -> str:
    """The names of the hyperparameters that weights_only=True refuses to read."""
    names = []
    for section in ("hyper_parameters", "datamodule_hyper_parameters"):
        for name, value in checkpoint.get(section, {}).items():
            file = io.BytesIO()
            torch.save(value, file)
            file.seek(0)
            if get_unsafe_globals_in_checkpoint(file):
                names.append(f"{section}.{name}")
    return ", ".join(names) or "its parts"
