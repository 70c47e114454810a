"""Short trainings whose curves are kept in memory, for the scripts that compare or look ahead."""

import logging
import math
import sys
import tempfile
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import lightning as L
import torch
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback
from lightning_train import build_training

from src.run.checkpoint_files import read_step
from src.run.config import CHAPTER


class EnoughStepsError(Exception):
    """Ends a training at once."""


class Recorder(Callback):
    """What a training does in each step; it waits for the device, so that seconds are a step's."""

    def __init__(self, max_steps: int | None = None) -> None:
        self.max_steps = max_steps
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.seconds: list[float] = []
        # Of each step, on a clock that stands still between epochs, but not while data are awaited.
        self.ends: list[float] = []
        self.left_out = 0.0  # seconds that this clock has stood still
        self.scores: dict[int, dict[str, float]] = {}  # of the validation, by the step
        # Bytes of what the first forward pass saves, by address; without the weights.
        self.weights: set[int] = set()
        self.saved_bytes: dict[int, int] = {}
        self.hooks = ExitStack()
        # Of a training that ends after max_steps.
        self.steps_per_epoch = 0
        self.checkpoint_bytes = 0
        self.checkpoint_step: int | None = None

    def on_train_epoch_start(self, *_: object) -> None:
        """Leave out what came after the last step, such as a validation."""
        if self.ends:
            self.left_out = perf_counter() - self.ends[-1]

    def on_train_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, *_: object
    ) -> None:
        """Start the clock; in the first step also look at what is kept for the gradients."""
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        if not self.losses:
            # They are there with any batch.
            self.weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
            hooks = torch.autograd.graph.saved_tensors_hooks(
                self.keep, lambda tensor: tensor
            )
            self.hooks.enter_context(hooks)
        wait_for_device()
        self.start = perf_counter()

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that the backward pass will need."""
        storage = tensor.untyped_storage()  # several tensors may be views of it
        if storage.data_ptr() not in self.weights:
            self.saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def on_before_backward(self, *_: object) -> None:
        """The forward pass is over."""
        self.hooks.close()

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Stop the clock, and after max_steps the training."""
        wait_for_device()
        now = perf_counter()
        self.seconds.append(now - self.start)
        self.ends.append(now - self.left_out)
        # A module that is not ours may have another name for it.
        self.losses.append(float(trainer.callback_metrics.get("train_loss", math.nan)))
        if len(self.losses) == self.max_steps:
            self.steps_per_epoch = trainer.num_training_batches
            path = Path(trainer.default_root_dir, "last.ckpt")
            trainer.save_checkpoint(path)
            self.checkpoint_bytes = path.stat().st_size
            self.checkpoint_step = read_step(path)
            raise EnoughStepsError

    def on_validation_end(self, trainer: L.Trainer, *_: object) -> None:
        """Keep the scores."""
        if not trainer.sanity_checking:
            metrics = trainer.callback_metrics.items()
            self.scores[trainer.global_step] = {
                name: float(value) for name, value in metrics
            }


def wait_for_device() -> None:
    """Return when the GPU has done what was asked for, also one that is not NVIDIA's."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def short_training(config: Namespace, recorder: Any, *others: Callback) -> Any:
    """Train on one device with these settings, without files; returns the recorder."""
    config = config.clone()
    config.trainer.devices = 1
    config.trainer.num_nodes = 1
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        trainer, module, data = build_training(
            config, Path(folder), [recorder, *others]
        )
        with suppress(EnoughStepsError):
            trainer.fit(module, data)
    return recorder


def results_folder(name: str) -> Path:
    """output/NAME in the chapter, for tables and pictures."""
    folder = CHAPTER / "output" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
