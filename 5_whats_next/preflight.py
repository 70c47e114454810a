"""Check everything before a long training: ten checks, a line for each.

uv run python preflight.py -c config/real.yaml --price_per_hour 20

Takes all settings of lightning_train.py. Exit code 1 if something would fail.
"""

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jsonargparse import Namespace
from short_run import Recorder, read_options, short_training

from src.callbacks import storage_path
from src.cloud_run import CloudFolder
from src.config import CHAPTER, choose_device
from src.data.loaders import Loaders
from src.environment import load_environment
from src.errors import UserError, one_line_errors

STEPS = 12  # that are timed; the first quarter warms up


def enough_room(needed: int, folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    text = f"{needed / 1e9:.2f} GB needed, {free / 1e9:.2f} free"
    if needed > free:
        raise UserError(text)
    return text


# The checks; each returns a line, or raises for what would fail.
class Preflight:
    def __init__(self, config: Namespace, price_per_hour: float) -> None:
        self.config, self.price = config, price_per_hour
        self.ranks = config.trainer.devices * config.trainer.num_nodes

    def device(self) -> str:
        kind = choose_device(self.config.trainer.accelerator).type
        available = getattr(torch, kind).device_count()
        if self.config.trainer.devices > available and kind != "cpu":
            raise UserError(
                f"trainer.devices: {self.config.trainer.devices}; here are {available}"
            )
        name = torch.cuda.get_device_name() if kind == "cuda" else kind
        return f"{self.config.trainer.devices} x {name}, on {self.config.trainer.num_nodes} nodes"

    def precision(self) -> str:
        kind = choose_device(self.config.trainer.accelerator).type
        wanted = self.config.trainer.precision
        if wanted == "16-mixed" and kind == "cpu":
            raise UserError("trainer.precision: 16-mixed needs a GPU")
        if (
            wanted == "bf16-mixed"
            and kind == "cuda"
            and not torch.cuda.is_bf16_supported(False)
        ):
            raise UserError(
                "trainer.precision: this GPU only emulates bfloat16; take 16-mixed"
            )
        return wanted

    def batch(self) -> str:
        size = self.config.data.batch_size
        if size % self.ranks:
            raise UserError(
                f"data.batch_size: {size} is no multiple of {self.ranks} devices"
            )
        return f"{size} samples, {size // self.ranks} on each device"

    def cores(self) -> str:
        # A cluster's job may not use all.
        affinity = getattr(os, "sched_getaffinity", None)
        here = len(affinity(0)) if affinity else os.cpu_count()
        needed = self.config.trainer.devices * (1 + self.config.data.num_workers)
        slow = "; processes will wait for each other" if needed > here else ""
        return f"{needed} processes on {here} cores{slow}"

    def data(self) -> str:
        self.loaders = Loaders(**vars(self.config.data))
        return f"{len(self.loaders.train_set)} samples, and {len(self.loaders.val_set)} to validate"

    # Wrong statistics give samples far from mean 0 and deviation 1.
    def sample(self) -> str:
        x, _ = self.loaders.train_set[0]
        values = x[~x.isnan()]
        mean, std = float(values.mean()), float(values.std())
        if not (abs(mean) < 3 and 0.03 < std < 10):  # also for NaN
            raise UserError(
                f"normalised: mean {mean:.2f}, deviation {std:.2f}; other statistics?"
            )
        share = values.numel() / x.numel()
        return f"{list(x.shape)}, mean {mean:.2f}, deviation {std:.2f}, {share:.0%} have a value"

    # Workers hand batches over in /dev/shm; a full one kills them.
    def memory(self) -> str:
        settings, place = self.config.data, Path("/dev/shm")
        if not settings.num_workers or not place.exists():
            return "none needed"
        sample = 4 * torch.Size(self.loaders.train_set.sample_shape).numel()
        # 3: a training batch, and a validation batch of twice the size; both sets of workers stay.
        batches = (
            self.config.trainer.devices
            * settings.num_workers
            * settings.prefetch_factor
            * 3
        )
        return enough_room(batches * sample * settings.batch_size // self.ranks, place)

    # A few steps, on one device with its part of the batch.
    def step(self) -> str:
        # This changes the settings: the checks that need the whole batch come before.
        self.config.data.batch_size //= self.ranks
        self.config.trainer.devices = self.config.trainer.num_nodes = 1
        self.run = short_training(self.config, Recorder(STEPS))
        seconds = median(self.run.seconds[STEPS // 4 :])
        epoch = seconds * self.loaders.steps_per_epoch
        hours = epoch * self.config.trainer.max_epochs / 3600
        price = f", price {hours * self.price:.2f}" if self.price else ""
        return f"{seconds:.3f} s; an epoch {epoch:.0f} s; the training {hours:.2f} h{price}"

    # Eight checkpoints: the best and the last, those before them, one being written, and three that
    # are on their way to the cloud and back.
    def disk(self) -> str:
        folder = CHAPTER / self.config.trainer.output_dir
        folder.mkdir(parents=True, exist_ok=True)
        # A weight and AdamW's two averages, in float32.
        return enough_room(8 * 12 * self.run.parameters, folder)

    def cloud(self) -> str:
        path = storage_path(self.config.trainer.cloud_storage_path)
        if not path:
            return "no upload"
        CloudFolder(f"{path}/preflight").probe()
        return f"{path} can be written and read"


# In the order above.
CHECKS = [name for name in vars(Preflight) if not name.startswith("_")]
# Seconds for those that ask a server; a store's metadata have the same limit (store.py).
TIMEOUTS = {"sample": 5.0, "cloud": 5.0}


# The mark and the line of a check, which may take so many seconds.
def attempt(check: Callable[[], str], seconds: float | None) -> tuple[str, str]:
    result = []

    def work() -> None:
        try:
            result.append(("ok", check()))
        except Exception as error:  # whatever it is, the other checks go on
            # loaders or run
            is_missing = isinstance(getattr(error, "obj", None), Preflight)
            text = "needs a check that has failed" if is_missing else str(error)
            result.append(("FAIL", " ".join(text.split())))

    if seconds:
        # A daemon: a thread that waits for a server does not keep the process alive.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(seconds)
    else:
        work()
    return result[0] if result else ("FAIL", f"no answer in {seconds:g} s")


# Run the checks; returns 1 if one failed.
def main() -> int:
    load_environment()
    chosen, config = read_options(__doc__, {"price_per_hour": 0.0}, [])
    preflight: Any = Preflight(config, chosen.price_per_hour)
    marks = []
    for name in CHECKS:
        mark, line = attempt(getattr(preflight, name), TIMEOUTS.get(name))
        print(f"{mark:<5} {name:<10} {line}", flush=True)
        marks.append(mark)
    return int("FAIL" in marks)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
