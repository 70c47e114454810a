"""Checkpoints that are whole or not there."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from src.errors import UserError


@dataclass
class TrainingState:
    """Everything that a resumed run needs and cannot compute again."""

    # No random generator is here: the order of the samples and the masks are functions of (seed,
    # epoch, index), and the step says which epoch and which batch come next.
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    step: int = 0  # optimiser steps done
    best_loss: float = math.inf  # lowest validation loss so far
    run_id: str = ""  # of wandb

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        states = {
            n: getattr(self, n).state_dict()
            for n in ("model", "optimizer", "scheduler")
        }
        # Their states replace the three objects; the other fields are saved as they are.
        save_atomic(vars(self) | states, path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint. Raises UserError if it cannot be read."""
        saved = read_checkpoint(path)
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(saved[name])
        self.step, self.best_loss, self.run_id = (
            saved[n] for n in ("step", "best_loss", "run_id")
        )


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
    # A checkpoint is a pickle: without weights_only, loading it runs whatever code is inside. And a
    # damaged one can fail in the zip reader, in the unpickler or anywhere below.
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = f"{type(error).__name__} {error}".splitlines()[0]
        raise UserError(f"cannot resume from {path}: {reason}") from error
