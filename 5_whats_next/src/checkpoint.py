"""Checkpoints that are whole or not there, and errors that say which file is broken."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from src.errors import UserError

# What a checkpoint holds.
KEYS = {"model", "optimizer", "scheduler", "config", "global_step", "best_loss", "run_id"}

# What may differ between the two halves of a resumed run. The result does not depend on it, except
# that another accelerator adds in another order and so changes the last digits.
FREE_KEYS = {
    "resume",
    "data.num_workers",
    "data.pin_memory",
    "trainer.accelerator",
    "trainer.max_steps",
    "trainer.log_every_n_steps",
    "trainer.picture_every_n_epochs",
    "trainer.checkpoint_every_n_steps",
    "trainer.output_dir",
    "trainer.wandb",
}


@dataclass
class TrainingState:
    """Everything that a resumed run needs and cannot compute again.

    No generator is here: the order of the samples and the masks are functions of (seed, epoch,
    index), and the step says which epoch and position come next.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    config: dict[str, Any]
    step: int = 0  # optimiser steps done
    best_loss: float = math.inf  # lowest validation loss so far
    run_id: str = ""  # of wandb

    def save(self, path: Path) -> None:
        """Write a checkpoint; see ``save_atomic``."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "config": self.config,
            "global_step": self.step,
            "best_loss": self.best_loss,
            "run_id": self.run_id,
        }
        save_atomic(state, path)

    def load(self, path: Path) -> None:
        """Continue from ``path``. Raises UserError if it belongs to another configuration."""
        state = read_checkpoint(path)
        for key, (there, here) in differences(state["config"], self.config):
            if key not in FREE_KEYS:
                raise UserError(
                    f"--resume: {key} is {there} in {path}, but {here} in this configuration; "
                    "to change it, start a new run"
                )
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise UserError(
                f"--resume: {path} does not fit the configured model: {reason}"
            ) from error
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.step, self.best_loss = state["global_step"], state["best_loss"]
        self.run_id = state["run_id"]


def checkpoint_to_resume(resume: str) -> Path:
    """The checkpoint that ``--resume`` names: itself, or the last one of a run's folder."""
    path = Path(resume)
    return path if path.suffix == ".pt" else path / "checkpoints" / "last.pt"


def differences(a: Any, b: Any, key: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The dotted keys at which two nested dictionaries differ, with both values."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted(a.keys() | b.keys()):
            yield from differences(a.get(name), b.get(name), f"{key}.{name}" if key else name)
    elif a != b:
        yield key, (a, b)


def save_atomic(state: dict[str, Any], path: Path) -> None:
    """Write ``state``: a crash at any moment leaves the old file or the new one, never a torn one.

    The temporary file is in the same folder, because a rename is atomic only within one filesystem.
    Its content reaches the disk (fsync) before the name does: otherwise a power cut can leave an
    empty file.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot write {path}: {reason}; its last version is intact") from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU. Raises UserError if it is missing or truncated."""
    try:
        # A checkpoint is a pickle: without weights_only, loading it runs whatever code is inside.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(
            f"--resume: there is no checkpoint {path}; a run that stopped before its first "
            "one cannot be resumed, so start a new one"
        ) from error
    # A damaged file can fail in the zip reader, in the unpickler or anywhere below.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"--resume: {path} is truncated or not a checkpoint ({reason})") from error
    if not isinstance(state, dict) or state.keys() != KEYS:
        raise UserError(f"--resume: {path} is not a checkpoint of this train script")
    return state
