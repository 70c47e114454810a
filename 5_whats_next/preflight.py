"""Check before a long training what can be checked soon: twelve checks, a line for each.

uv run python preflight.py -c config/real.yaml --price_per_hour 20

Takes all settings of lightning_train.py. Exit code 1 if something would fail. It trains twelve
steps on one device. Not tried: ranks that meet, a resume, a whole validation. For the first two
run this on all devices, and then the same command with 40:

uv run python lightning_train.py -c config/real.yaml --trainer.run_name try --trainer.max_steps 20
"""

import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning_train
import torch
import wandb
from jsonargparse import Namespace
from short_run import Recorder, read_options, short_training
from torch.utils.data import DataLoader

from src.callbacks import storage_path
from src.cloud_folder import CloudFolder
from src.config import CHAPTER, choose_device
from src.data.checked_store import configure_libraries
from src.data.lightning_datamodule import FieldDataModule
from src.data.loaders import Loaders
from src.data.windows import WindowGrid
from src.errors import UserError, one_line_errors
from src.loader_report import memory_needed

STEPS = 12  # that are timed; the first quarter warms up
OWN_DATA = "your own data module; the step tries it"


@dataclass
class Plan:
    """What is checked, and what earlier checks have found for later ones.

    Args:
        config: the training's settings.
        price_per_hour: of all devices.
        loaders: the data, from the check `data` on.
        run: the short training, from the check `step` on.
    """

    config: Namespace
    price_per_hour: float
    loaders: Any = None
    run: Any = None

    @property
    def ranks(self) -> int:
        """Processes on all machines."""
        return int(self.config.trainer.devices * self.config.trainer.num_nodes)

    @property
    def device(self) -> str:
        """The kind of device: cuda, mps or cpu."""
        return choose_device(self.config.trainer.accelerator).type

    @property
    def data(self) -> Namespace:
        """The settings of the data; a class without arguments has none."""
        return self.config.get("data") or Namespace()

    def for_one_device(self) -> Namespace:
        """Settings that train one device with its part of the batch, and with its own streams."""
        config = self.config.clone()
        config.trainer.devices = 1
        config.trainer.num_nodes = 1
        if self.data.get("batch_size"):
            config.data.batch_size //= self.ranks
        streams = self.loaders and getattr(self.loaders.train_set, "streams", None)
        if streams:
            dataset = config.data.dataset
            config.data.dataset = partial(dataset, streams=streams // self.ranks)
        return config


def check_device(plan: Plan) -> str:
    """As many devices as wanted."""
    settings = plan.config.trainer
    available = getattr(torch, plan.device).device_count()
    if settings.devices > available and plan.device != "cpu":
        raise UserError(f"trainer.devices: {settings.devices}; here are {available}")
    name = torch.cuda.get_device_name() if plan.device == "cuda" else plan.device
    return f"{settings.devices} x {name}, on {settings.num_nodes} nodes"


def check_precision(plan: Plan) -> str:
    """The device computes in it."""
    wanted = plan.config.trainer.precision
    if wanted == "16-mixed" and plan.device == "cpu":
        raise UserError("trainer.precision: 16-mixed needs a GPU")
    is_emulated = plan.device == "cuda" and not torch.cuda.is_bf16_supported(False)
    if wanted == "bf16-mixed" and is_emulated:
        raise UserError(
            "trainer.precision: this GPU only emulates bfloat16; take 16-mixed"
        )
    return str(wanted)


def check_batch(plan: Plan) -> str:
    """The devices get equal parts."""
    size = plan.data.get("batch_size")
    if size is None:
        return OWN_DATA
    if size % plan.ranks:
        raise UserError(
            f"data.batch_size: {size} is no multiple of {plan.ranks} devices"
        )
    return f"{size} samples, {size // plan.ranks} on each device"


def check_cores(plan: Plan) -> str:
    """A core for each process; too few are slow, and no error."""
    # A cluster's job may not use all.
    affinity = getattr(os, "sched_getaffinity", None)
    here = len(affinity(0)) if affinity else os.cpu_count() or 1
    workers = plan.data.get("num_workers", 0)
    needed = plan.config.trainer.devices * (1 + workers)
    slow = "; processes will wait for each other" if needed > here else ""
    return f"{needed} processes on {here} cores{slow}"


def check_data(plan: Plan) -> str:
    """The data are there."""
    if FieldDataModule not in lightning_train.CLASSES:
        return OWN_DATA
    plan.loaders = Loaders(**vars(plan.config.data))
    train_set = plan.loaders.train_set
    streams = getattr(train_set, "streams", plan.ranks)
    if streams % plan.ranks:
        raise UserError(f"streams: {streams} is no multiple of {plan.ranks} devices")
    text = f"{len(train_set)} samples, and {len(plan.loaders.val_set)} to validate"
    if hasattr(train_set, "grid"):
        text += rows_never_read(train_set.grid)
    if hasattr(train_set, "chunk"):
        # A cache holds the chunks of a rank's own streams.
        own = Loaders(**vars(plan.for_one_device().data))
        size = memory_needed(own.train_loader(lambda: 0), own.batch_size)
        text += f"; batches take up to {size / 1e6:.0f} MB of memory in each rank"
    return text


def rows_never_read(grid: WindowGrid) -> str:
    """Rows and columns behind the last window: no error, but the model never sees them."""
    text = ""
    for axis, number in (("lat", 1), ("lon", 2)):
        size = len(getattr(grid, axis))
        end = grid.starts[number][-1] + grid.window[number]
        if end < size:
            text += f"; NO WINDOW has the last {size - end} of {size} {axis}"
    return text


def check_sample(plan: Plan) -> str:
    """The values are normalised: wrong statistics give others."""
    if plan.loaders is None:
        return OWN_DATA
    train_set = plan.loaders.train_set
    # Eight anywhere, because one may be all land.
    seeded = torch.Generator().manual_seed(0)
    numbers = torch.randperm(len(train_set), generator=seeded)[:8].tolist()
    x, _ = next(iter(DataLoader(train_set, batch_sampler=[numbers])))
    values = x[~x.isnan()]
    mean = float(values.mean())
    std = float(values.std())
    if not (abs(mean) < 3 and 0.03 < std < 10):  # also for NaN
        raise UserError(
            f"normalised: mean {mean:.2f}, deviation {std:.2f}; other statistics?"
        )
    share = values.numel() / x.numel()
    return f"{list(x.shape[1:])}, mean {mean:.2f}, deviation {std:.2f}, {share:.0%} have a value"


def check_shm(plan: Plan) -> str:
    """Room in /dev/shm, where workers hand batches over; a full one kills them."""
    if plan.loaders is None:
        return OWN_DATA
    settings = plan.config.data
    place = Path("/dev/shm")
    if not settings.num_workers or not place.exists():
        return "no workers, so none needed in /dev/shm"
    sample = 4 * torch.Size(plan.loaders.train_set.sample_shape).numel()
    # 3: a training batch, and a validation batch of twice the size; both sets of workers stay.
    batches = settings.num_workers * settings.prefetch_factor * 3
    batches *= plan.config.trainer.devices
    return enough_room(batches * sample * settings.batch_size // plan.ranks, place)


def check_step(plan: Plan) -> str:
    """A few steps, on one device with its part of the batch."""
    run = short_training(plan.for_one_device(), Recorder(STEPS))
    if len(run.losses) < STEPS:
        raise UserError(f"a training of {len(run.losses)} steps; {STEPS} are timed")
    plan.run = run
    # With the wait for data, which comes now and then.
    first, *_, last = run.ends[STEPS // 4 :]
    seconds = (last - first) / (STEPS - STEPS // 4 - 1)
    # This device alone would have to take the steps of all.
    epoch = seconds * run.steps_per_epoch / plan.ranks
    hours = epoch * plan.config.trainer.max_epochs / 3600
    price = ""
    if plan.price_per_hour:
        price = f", price {hours * plan.price_per_hour:.2f}"
    return f"{seconds:.3f} s; an epoch {epoch:.0f} s; the training {hours:.2f} h{price}"


def check_checkpoint(plan: Plan) -> str:
    """That of the short training has been read back."""
    if plan.run.checkpoint_step != STEPS:
        raise UserError("the checkpoint that was saved is damaged")
    return f"{plan.run.checkpoint_bytes / 1e6:.1f} MB, saved and read back"


def check_disk(plan: Plan) -> str:
    """Room for eight checkpoints.

    The best and the last, those before them, one being written, and three that are on their way to
    the cloud and back.
    """
    folder = CHAPTER / plan.config.trainer.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    return enough_room(8 * plan.run.checkpoint_bytes, folder)


def check_cloud(plan: Plan) -> str:
    """Checkpoints can be written, read, listed and deleted."""
    path = storage_path(plan.config.trainer.cloud_storage_path)
    if not path:
        return "no upload"
    CloudFolder(f"{path}/preflight").probe()
    return f"{path} can be written, read and listed"


def check_wandb(plan: Plan) -> str:
    """An online run has a key that the server knows."""
    mode = plan.config.trainer.wandb or os.environ.get("WANDB_MODE", "offline")
    if mode != "online":
        return str(mode)
    if not os.environ.get("WANDB_API_KEY"):
        raise UserError("WANDB_API_KEY is not set")
    return f"online, as {wandb.Api(timeout=4).viewer.username}"


def enough_room(needed: int, folder: Path) -> str:
    """Raises UserError if so many bytes are not free there."""
    free = shutil.disk_usage(folder).free
    text = f"{needed / 1e9:.2f} GB needed, {free / 1e9:.2f} free"
    if needed > free:
        raise UserError(text)
    return text


CHECKS = {
    "device": check_device,
    "precision": check_precision,
    "batch": check_batch,
    "cores": check_cores,
    "data": check_data,
    "sample": check_sample,
    "shm": check_shm,
    "step": check_step,
    "checkpoint": check_checkpoint,
    "disk": check_disk,
    "cloud": check_cloud,
    "wandb": check_wandb,
}
NEED_A_STEP = ("checkpoint", "disk")


def attempt(name: str, plan: Plan) -> tuple[str, str]:
    """The mark and the line of a check."""
    if name in NEED_A_STEP and plan.run is None:
        return "FAIL", "needs a check that has failed"
    # A server that does not answer is an error, too: each request has a limit.
    try:
        return "ok", CHECKS[name](plan)
    except Exception as error:  # whatever it is, the other checks go on
        return "FAIL", " ".join(str(error).split())


def main() -> int:
    """Run the checks; returns 1 if one failed."""
    configure_libraries()
    options, config = read_options(__doc__, {"price_per_hour": 0.0}, {})
    plan = Plan(config, options.price_per_hour)
    marks = []
    for name in CHECKS:
        mark, line = attempt(name, plan)
        print(f"{mark:<5} {name:<10} {line}", flush=True)
        marks.append(mark)
    return int("FAIL" in marks)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
