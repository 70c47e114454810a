"""Check before a long training what can be checked soon: eight checks, a line for each.

uv run python preflight.py -c config/real.yaml

Takes all settings of lightning_train.py. Exit code 1 if something would fail. It trains twelve
steps on one device. Not tried: ranks that meet, a resume, a whole validation. For the first two
run this on all devices, and then again with --trainer.max_steps 40:

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
from short_run import Recorder, short_training
from torch.utils.data import DataLoader

from src.callbacks.cloud_upload import storage_path
from src.callbacks.loader_report import LoaderReport
from src.data.checked_store import configure_libraries
from src.data.lightning_datamodule import FieldDataModule
from src.data.loaders import Loaders
from src.data.windows import WindowGrid
from src.run.cloud_folder import CloudFolder
from src.run.config import CHAPTER, choose_device, parse_config
from src.run.errors import UserError, one_line_errors

STEPS = 12  # that are timed; the first quarter warms up
SHM = Path("/dev/shm")  # where workers hand batches over; a full one kills them
OWN_DATA = "your own data module; the step tries it"


@dataclass
class Plan:
    """What is checked, and what earlier checks have found for later ones.

    Args:
        config: the training's settings.
        loaders: the data, from the check `data` on; None for data of your own.
        run: the short training, from the check `step` on.
    """

    config: Namespace
    loaders: Any = None
    run: Any = None

    @property
    def ranks(self) -> int:
        """Processes on all machines."""
        return int(self.config.trainer.devices * self.config.trainer.num_nodes)

    def for_one_device(self) -> Namespace:
        """Settings that train one device with its part of the batch, and with its own streams."""
        config = self.config.clone()
        if config.get("data.batch_size"):
            config.data.batch_size //= self.ranks
        train_set = getattr(self.loaders, "train_set", None)
        if streams := getattr(train_set, "streams", None):
            own = {"streams": streams // self.ranks}
            config.data.dataset = partial(config.data.dataset, **own)
        return config


def check_device(plan: Plan) -> str:
    """As many devices as wanted, which compute in the wanted precision."""
    settings = plan.config.trainer
    kind = choose_device(settings.accelerator).type
    available = getattr(torch, kind).device_count()
    if settings.devices > available and kind != "cpu":
        raise UserError(f"trainer.devices: {settings.devices}; here are {available}")
    is_emulated = kind == "cuda" and not torch.cuda.is_bf16_supported(False)
    if settings.precision == "bf16-mixed" and is_emulated:
        raise UserError("trainer.precision: this GPU only emulates bfloat16")
    name = torch.cuda.get_device_name() if kind == "cuda" else kind
    return f"{settings.devices} x {name} on {settings.num_nodes} nodes, {settings.precision}"


def is_own_data() -> bool:
    """Whether lightning_train.py imports another data module than ours."""
    return FieldDataModule not in lightning_train.CLASSES


def check_data(plan: Plan) -> str:
    """The data are there, and the devices get equal parts."""
    if is_own_data():
        return OWN_DATA
    plan.loaders = Loaders(**vars(plan.config.data))
    train_set = plan.loaders.train_set
    size = plan.loaders.batch_size
    streams = getattr(train_set, "streams", plan.ranks)
    if size % plan.ranks or streams % plan.ranks:
        text = f"data.batch_size {size} or streams {streams}"
        raise UserError(f"{text}: no multiple of {plan.ranks} devices")
    text = f"{len(train_set)} samples, and {len(plan.loaders.val_set)} to validate"
    if hasattr(train_set, "grid"):
        text += rows_never_read(train_set.grid)
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
    if is_own_data():
        return OWN_DATA
    if plan.loaders is None:
        raise UserError("not tried: the check data has failed")
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
    return f"{list(x.shape[1:])}, mean {mean:.2f}, deviation {std:.2f}"


def check_workers(plan: Plan) -> str:
    """A core for each process, and room for the batches of workers."""
    devices = plan.config.trainer.devices
    workers = plan.loaders.num_workers if plan.loaders else 0
    # A cluster's job may not use all.
    affinity = getattr(os, "sched_getaffinity", None)
    here = len(affinity(0)) if affinity else os.cpu_count()
    processes = devices * (1 + workers)
    text = f"{processes} processes on {here} cores"
    if processes > here:
        text += "; MORE THAN CORES: they wait for each other"
    if not workers or not SHM.exists():
        return text
    sample = 4 * torch.Size(plan.loaders.train_set.sample_shape).numel()
    # 3: a training batch, and a validation batch of twice the size; both sets of workers stay.
    batches = devices * workers * plan.config.data.prefetch_factor * 3
    size = plan.loaders.batch_size // plan.ranks
    return f"{text}; {enough_room(batches * size * sample, SHM)}"


def check_step(plan: Plan) -> str:
    """A few steps, on one device with its part of the batch; the checkpoint is read back."""
    run = short_training(plan.for_one_device(), Recorder(STEPS), LoaderReport())
    if run.checkpoint_step != STEPS:
        text = f"{len(run.losses)} steps of {STEPS}, or a damaged checkpoint"
        raise UserError(text)
    plan.run = run
    # With the wait for data, which comes now and then.
    first, *_, last = run.ends[STEPS // 4 :]
    seconds = (last - first) / (STEPS - STEPS // 4 - 1)
    # This device alone would have to take the steps of all.
    epoch = seconds * run.steps_per_epoch / plan.ranks
    hours = epoch * plan.config.trainer.max_epochs / 3600
    cost = f"{hours:.2f} h, or {hours * plan.ranks:.2f} device hours"
    return f"{seconds:.3f} s; an epoch {epoch:.0f} s; the training {cost}"


def check_disk(plan: Plan) -> str:
    """Room for eight checkpoints.

    The best and the last, those before them, one being written, and three that are on their way to
    the cloud and back.
    """
    if plan.run is None:
        raise UserError("not tried: the check step has failed")
    folder = CHAPTER / plan.config.trainer.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    size = plan.run.checkpoint_bytes
    return f"{size / 1e6:.1f} MB for a checkpoint; {enough_room(8 * size, folder)}"


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
    "data": check_data,
    "sample": check_sample,
    "workers": check_workers,
    "step": check_step,
    "disk": check_disk,
    "cloud": check_cloud,
    "wandb": check_wandb,
}


def main() -> int:
    """Run the checks; returns 1 if one failed."""
    configure_libraries()
    plan = Plan(parse_config(__doc__, None, *lightning_train.CLASSES)[0])
    code = 0
    for name, check in CHECKS.items():
        mark = "ok"
        # A server that does not answer is an error, too: each request has a limit.
        try:
            line = check(plan)
        except Exception as error:  # whatever it is, the other checks go on
            mark = "FAIL"
            line = " ".join(str(error).split())
            code = 1
        print(f"{mark:<5} {name:<8} {line}", flush=True)
    return code


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
