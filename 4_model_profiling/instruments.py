"""What the scripts of this chapter share: a short training, and a clock for its steps.

Module and data are those that lightning_train.py imports: change its two imports for your own.
"""

import argparse
import gc
import logging
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning_train import CLASSES, build_training
from torch import Tensor

from src.run.config import CHAPTER, parse_config
from src.run.errors import UserError

PARTS = ("data", "forward", "backward", "optimizer")
WARMUP = 5  # steps that do not count: memory is reserved, caches fill, code is compiled


def make_parser(description: str | None, steps: int) -> argparse.ArgumentParser:
    """The command line of a script; what it does not know is a setting of the training.

    Args:
        description: what --help says first.
        steps: default of --steps.
    """
    parser = argparse.ArgumentParser(
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Settings of lightning_train.py work here too: --data.batch_size 64",
    )
    default = CHAPTER / "config" / "config.yaml"
    text = "YAML file; if there are several, the last one counts"
    parser.add_argument("-c", "--config", default=default, help=text)
    parser.add_argument("--steps", type=int, default=steps, help="training steps")
    return parser


def short_training(
    arguments: Sequence[str],
    steps: int,
    callbacks: Sequence[Callback] = (),
    **trainer_arguments: Any,
) -> tuple[L.Trainer, Any]:
    """Train some steps on one device, without validation, report and checkpoint.

    Args:
        arguments: words of lightning_train.py's command line.
        steps: how many.
        callbacks: the Trainer's.
        trainer_arguments: further arguments of the Trainer.

    Returns:
        The Trainer and the module.

    Raises:
        UserError: the training has fewer steps.
    """
    config, _ = parse_config("", CLASSES, list(arguments))
    config.trainer.devices = config.trainer.num_nodes = 1
    gc.collect()  # the training before this one, which may still fill the GPU's memory
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with TemporaryDirectory() as folder:
        trainer, module, data = build_training(
            config,
            Path(folder),
            list(callbacks),
            max_steps=steps,
            limit_val_batches=0,
            enable_checkpointing=False,
            enable_model_summary=False,
            **trainer_arguments,
        )
        trainer.fit(module, data)
    if trainer.global_step < steps:
        raise UserError(
            f"the training has {trainer.global_step} steps, and {steps} are needed; "
            "raise --trainer.max_epochs"
        )
    return trainer, module


class StepTimer(Callback):
    """How long a step and its parts take, and its loss; for any module with one backward pass.

    A mark ends one part and begins the next one, so the parts add up to the step.
    """

    def __init__(self) -> None:
        self.marks: list[Any] = []
        self.losses: list[Tensor] = []  # on the device: reading one would wait

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """The first batch is loaded from here on."""
        self.device = module.device
        self.mark()

    def mark(self, *_: object) -> None:
        """Note the time."""
        self.marks.append(now(self.device))

    on_train_batch_start = mark  # data: the batch is there, and on the device
    on_before_backward = mark  # forward
    on_after_backward = mark  # backward

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: object
    ) -> None:
        """The optimizer's part ends: clipping, its step, the schedule."""
        self.mark()
        self.losses.append(outputs["loss"].detach())

    def milliseconds(self) -> dict[str, float]:
        """Means of the step and its parts, without the first steps."""
        times = [elapsed(*pair) for pair in pairwise(self.marks)]
        first = WARMUP * len(PARTS)
        means = {
            part: fmean(times[first + number :: len(PARTS)])
            for number, part in enumerate(PARTS)
        }
        return {"step": sum(means.values()), **means}


def now(device: torch.device) -> Any:
    """The time, or on a GPU a time stamp that it writes when its queue gets there.

    A GPU works through a queue: a call returns when its work is queued. A clock around it would
    measure how fast Python fills the queue, and waiting for the GPU would slow the training.
    """
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed(start: Any, stop: Any) -> float:
    """Milliseconds between two times or time stamps."""
    if isinstance(start, float):
        return 1e3 * (stop - start)
    stop.synchronize()
    return float(start.elapsed_time(stop))
