"""What a stopped run needs to go on."""

import math
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from src.run.checkpoint import read_checkpoint, save_atomic


@dataclass
class TrainingState:
    """All that a resumed run cannot compute again.

    The state of a random generator is not among it: the order of the samples and the masks are
    functions of (seed, epoch, index), and the step says which epoch and which batch come next.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    step: int = 0  # optimiser steps that are done
    best_loss: float = math.inf  # lowest validation loss so far
    run_id: str = ""  # of wandb

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        checkpoint = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "step": self.step,
            "best_loss": self.best_loss,
            "run_id": self.run_id,
        }
        save_atomic(checkpoint, path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint. Raises UserError if it cannot be read."""
        checkpoint = read_checkpoint(path)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scheduler.load_state_dict(checkpoint["scheduler"])
        self.step = checkpoint["step"]
        self.best_loss = checkpoint["best_loss"]
        self.run_id = checkpoint["run_id"]
