"""Short trainings whose curves are kept in memory, for the scripts that compare or look ahead."""

import argparse
import logging
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

from src.config import CHAPTER, parse_config


# A script's own options, with these defaults, and the settings of the training.
def read_options(
    doc: Any, options: dict[str, Any], first: list[str]
) -> tuple[Any, Any]:
    # `first` are settings that the command line overrides.
    more = "and all settings of lightning_train.py; its --help explains them"
    parser = argparse.ArgumentParser(description=doc, allow_abbrev=False, epilog=more)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, value in options.items():
        parser.add_argument(
            f"--{name}", type=type(value), default=value, help=f"default {value}"
        )
    chosen, words = parser.parse_known_args()
    chosen.words = [*first, *words]
    return chosen, parse_config(doc, chosen.words, *CLASSES)[0]


class EnoughStepsError(Exception):
    """Ends a training at once."""


class Recorder(Callback):
    """What a training does in each step; it waits for the device, so that seconds are a step's."""

    def __init__(self, max_steps: int | None = None) -> None:
        self.max_steps = max_steps
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.seconds: list[float] = []
        self.scores: dict[int, dict[str, float]] = {}  # of the validation, by the step
        # Bytes of what the first forward pass saves, by address.
        self.kept: dict[int, int] = {}
        self.hooks, self.parameters = ExitStack(), 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.parameters = sum(weight.numel() for weight in module.parameters())

    def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        if not self.losses:
            hooks = torch.autograd.graph.saved_tensors_hooks(
                self.keep, lambda tensor: tensor
            )
            self.hooks.enter_context(hooks)
        wait_for_device()
        self.start = perf_counter()

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()  # several tensors may be views of it
        self.kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def on_before_backward(self, *_: object) -> None:
        self.hooks.close()

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        wait_for_device()
        self.seconds.append(perf_counter() - self.start)
        self.losses.append(float(trainer.callback_metrics["train_loss"]))
        if len(self.losses) == self.max_steps:
            raise EnoughStepsError

    def on_validation_end(self, trainer: L.Trainer, *_: object) -> None:
        if not trainer.sanity_checking:
            metrics = trainer.callback_metrics.items()
            self.scores[trainer.global_step] = {
                name: float(value) for name, value in metrics
            }


def wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def short_training(config: Namespace, recorder: Any) -> Any:
    """Train with these settings, without files and messages; returns the recorder."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        trainer, module, data = build_training(config, Path(folder), [recorder])
        with suppress(EnoughStepsError):
            trainer.fit(module, data)
    return recorder


# output/NAME in the chapter, for tables and pictures.
def results_folder(name: str) -> Path:
    folder = CHAPTER / "output" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
