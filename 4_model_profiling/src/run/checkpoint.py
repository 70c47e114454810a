"""Checkpoints: whole or not there, and all that a run is."""

import math
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from src.run.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name when all is written.

    A crash at any moment leaves the old file or the new one, never half of one. So does a full
    disk, which raises OSError.
    """
    # In the same folder, because a rename is atomic only within one filesystem.
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            # The content has to reach the disk before the name does: otherwise a power cut can
            # leave an empty file under the right name.
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except RuntimeError as error:
        # torch.save raises it while it handles the OSError of a full disk.
        raise (error.__context__ or error) from None
    finally:
        temporary.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU.

    Raises:
        UserError: it is missing or damaged; names those that are there.
    """
    try:
        # A checkpoint is a pickle: without weights_only, loading it runs whatever code is inside.
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        found = [file.name for file in path.parent.glob("*.ckpt")]
        raise UserError(
            f"cannot read {path}: {reason}; checkpoints there: {found}"
        ) from error


def check_finite(model: nn.Module, step: int, *losses: Tensor) -> None:
    """Raise UserError if a loss or a weight is not finite: such weights would stay so.

    Called before each save and beside each logged row, and not in each step, because a GPU would
    have to be waited for.
    """
    if not all(x.isfinite().all() for x in [*losses, *model.parameters()]):
        raise UserError(
            f"step {step}: the loss or weights are not finite; a lower optimizer.lr? "
            "The last checkpoint is from before"
        )


# Each of them has a state of its own.
STATEFUL = ("model", "optimizer", "scheduler")


@dataclass
class TrainingState:
    """All that a resumed run cannot compute again.

    The state of a random generator is not among it: the order of the samples and the masks are
    functions of (seed, epoch, index), and the step says which epoch and which batch come next.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    settings: str  # the run's configuration, as YAML
    step: int = 0  # optimiser steps that are done
    best_loss: float = math.inf  # lowest validation loss so far
    rows: list[dict[str, float]] = field(default_factory=list)  # of metrics.csv
    run_id: str = ""  # of wandb

    def save(self, path: Path) -> None:
        """Write a checkpoint. Raises UserError if the weights are not finite."""
        check_finite(self.model, self.step)
        states = {name: getattr(self, name).state_dict() for name in STATEFUL}
        with atomic_write(path) as file:
            torch.save(vars(self) | states, file)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint. Raises UserError if it cannot be read."""
        checkpoint = read_checkpoint(path)
        for name in STATEFUL:
            getattr(self, name).load_state_dict(checkpoint[name])
        self.step = checkpoint["step"]
        self.best_loss = checkpoint["best_loss"]
        self.rows = checkpoint["rows"]
        self.run_id = checkpoint["run_id"]
