"""Short trainings whose curves are kept in memory, for the scripts that compare or look ahead."""

import argparse
import json
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
from lightning_train import CLASSES, build_training

from src.checkpoint_files import read_step
from src.config import CHAPTER, DEFAULT_FILE, parse_config
from src.errors import UserError


def read_options(
    doc: Any, own: dict[str, Any], defaults: dict[str, Any]
) -> tuple[Any, Any]:
    """A script's own options, with these defaults, and the settings of the training.

    ``defaults`` are settings that the user's files and options override. The options also have
    ``own_overrides``: what the user typed; and ``overrides``: the defaults, then that.
    """
    more = "and all settings of lightning_train.py; its --help explains them"
    parser = argparse.ArgumentParser(description=doc, allow_abbrev=False, epilog=more)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, value in own.items():
        parser.add_argument(
            f"--{name}", type=type(value), default=value, help=f"default {value}"
        )
    parser.add_argument(
        "-c", "--config", action="append", default=[], help="YAML file of settings"
    )
    options, others = parser.parse_known_args()
    options.own_overrides = [*(f"-c={file}" for file in options.config), *others]
    # jsonargparse also takes a file's content. Options beat files, so defaults have to be a file.
    defaults_file = f"-c={json.dumps(defaults)}"
    # Any file replaces config.yaml, and a run has its own: name it where neither is given.
    is_resumed = any(word.startswith("--resume") for word in others)
    base = [] if options.config or is_resumed else [f"-c={DEFAULT_FILE}"]
    options.overrides = [*base, defaults_file, *options.own_overrides]
    return options, parse_config(doc, options.overrides, *CLASSES)[0]


def check_one_device(config: Namespace) -> None:
    """Raise UserError for several devices: each rank would run the whole script by itself."""
    if config.trainer.devices > 1 or config.trainer.num_nodes > 1:
        raise UserError(
            "this script trains on one device: --trainer.devices 1 --trainer.num_nodes 1"
        )


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


def short_training(config: Namespace, recorder: Any) -> Any:
    """Train with these settings, without files and messages; returns the recorder."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        trainer, module, data = build_training(config, Path(folder), [recorder])
        with suppress(EnoughStepsError):
            trainer.fit(module, data)
    return recorder


def results_folder(name: str) -> Path:
    """output/NAME in the chapter, for tables and pictures."""
    folder = CHAPTER / "output" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
