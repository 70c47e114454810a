"""Checks of a preflight that look at this machine: devices, cores, memory, disk, variables."""

import netrc
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import torch

from src.config import CHAPTER
from src.device import choose_device, describe_device
from src.environment import env_file, warnings_about
from src.lightning_settings import check_devices
from src.preflight.plan import Finding, Plan, size
from src.tracking import wandb_mode

SHARED_MEMORY = Path("/dev/shm")
COPIES = 8  # best and last, what they were before, one being written, three being uploaded


def variables(plan: Plan) -> Finding:
    """The file .env, and variables that do not go together."""
    if problems := warnings_about(env_file()):
        return Finding("warning", "; ".join(problems), "python environment.py shows what is set")
    return Finding("ok", ".env in order" if env_file() else "no .env, nothing amiss")


def devices(plan: Plan) -> Finding:
    """Kind, number and driver."""
    trainer = plan.config.trainer
    # The batch has a check of its own.
    check_devices(trainer.accelerator, trainer.devices, trainer.num_nodes, plan.world_size)
    device = choose_device(trainer.accelerator)
    found = f"{trainer.devices} x {describe_device(device)}"
    if device.type == "cuda":
        driver = Path("/sys/module/nvidia/version")
        version = driver.read_text().strip() if driver.exists() else "unknown"
        found += f", CUDA {torch.version.cuda}, driver {version}"
    if trainer.num_nodes > 1:
        found += f"; {trainer.num_nodes} nodes are planned, and this looks at one"
    if device.type == "cpu" and trainer.accelerator == "auto":
        return Finding("warning", found, "no GPU was found; if there is one, look at the driver")
    return Finding("ok", found)


def precision(plan: Plan) -> Finding:
    """Whether the device computes in it."""
    wanted = plan.setting("precision", "32-true")
    kind = choose_device(plan.config.trainer.accelerator).type
    if wanted == "16-mixed" and kind == "cpu":
        return Finding(
            "not ok", "trainer.precision: 16-mixed on a CPU", "set 32-true, or bf16-mixed"
        )
    if wanted == "bf16-mixed" and kind == "cpu":
        return Finding("warning", "bf16-mixed on a CPU, which may be slower", "compare 32-true")
    if wanted == "bf16-mixed" and kind == "cuda" and not torch.cuda.is_bf16_supported(False):
        return Finding(
            "not ok", "trainer.precision: bf16-mixed, which this GPU only emulates", "set 16-mixed"
        )
    return Finding("ok", f"{wanted} on {kind}")


def batch(plan: Plan) -> Finding:
    """Whether devices and samples can share it."""
    given, world = plan.config.data.batch_size, plan.world_size
    if world < 1 or given % world:
        near = max(1, round(given / max(1, world))) * world
        return Finding(
            "not ok",
            f"data.batch_size: {given} cannot be shared by {world} devices",
            f"set a multiple of {world}, such as {near}",
        )
    if plan.train_set is not None and given > len(plan.train_set):
        found = f"data.batch_size: {given} is more than the {len(plan.train_set)} samples"
        return Finding("not ok", found, f"set at most {len(plan.train_set)}")
    return Finding("ok", f"{given} samples, {plan.device_batch} on each device")


def cores(plan: Plan) -> Finding:
    """Training processes and their workers against the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # a cluster's job has a part of the machine
    here = len(affinity(0)) if affinity else os.cpu_count() or 1
    workers, ranks = plan.config.data.num_workers, plan.config.trainer.devices
    needed = ranks * (1 + workers)
    found = f"processes: {ranks} x (1 + {workers} workers) = {needed}, cores: {here}"
    if needed > here:
        todo = f"lower data.num_workers to {max(0, here // max(1, ranks) - 1)}, or ask for more"
        return Finding("warning", f"{found}: they will wait for each other", todo)
    return Finding("ok", found)


def shared_memory(plan: Plan) -> Finding:
    """Workers hand batches over in /dev/shm; a full one kills them with a bus error."""
    data = plan.config.data
    if not data.num_workers:
        return Finding("ok", "no workers, none needed")
    if not SHARED_MEMORY.exists():
        return Finding("ok", f"this system has no {SHARED_MEMORY}")
    sample = 4 * torch.Size(plan.sets[0].sample_shape).numel()
    # A batch of the validation has twice the samples, and its workers stay as well.
    each = (1 + 2) * plan.device_batch * sample * data.prefetch_factor
    needed = plan.config.trainer.devices * data.num_workers * each
    free = shutil.disk_usage(SHARED_MEMORY).free
    found = f"prefetched batches need up to {size(needed)} of {SHARED_MEMORY}, {size(free)} free"
    if needed > free:
        wanted = -(-needed // 10**9)
        todo = f"docker run --shm-size={wanted}g, or lower data.prefetch_factor or num_workers"
        return Finding("not ok", found, todo)
    return Finding("ok", found)


def disk(plan: Plan) -> Finding:
    """Room for the checkpoints, and for the cache of the data."""
    output = CHAPTER / plan.config.trainer.output_dir
    place = next(path for path in (output, *output.parents) if path.exists())
    if not os.access(place, os.W_OK):
        found = f"trainer.output_dir: {output} cannot be written to"
        return Finding("not ok", found, "set another folder, or ask for the right to write")
    needed, free = COPIES * plan.checkpoint_bytes, shutil.disk_usage(place).free
    found = f"{COPIES} checkpoints of {size(plan.checkpoint_bytes)}, {size(free)} free"
    if needed > free:
        return Finding("not ok", found, "make room, or set trainer.output_dir to a larger disk")
    if folder := plan.of_dataset.get("disk_cache"):
        cache = Path(folder).absolute()
        place = next(path for path in (cache, *cache.parents) if path.exists())
        wanted, free = plan.of_dataset["disk_cache_gb"] * 1e9, shutil.disk_usage(place).free
        found += f"; cache of {size(wanted)}, {size(free)} free"
        if wanted > free:
            return Finding("warning", found, "lower data.dataset.disk_cache_gb")
    return Finding("ok", found)


def memory(plan: Plan) -> Finding:
    """What the timed steps took."""
    device = choose_device(plan.config.trainer.accelerator)
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        found, limit = f"{size(plan.peak_bytes)} of {size(total)} on a GPU", 0.9 * total
    else:
        ranks = plan.config.trainer.devices
        total = psutil.virtual_memory().available + plan.peak_bytes
        found = f"{ranks} x {size(plan.peak_bytes)} of {size(total)}"
        limit = 0.9 * total / ranks
    if plan.peak_bytes > limit:
        todo = "lower data.batch_size, or raise trainer.micro_batches"
        return Finding("warning", f"{found}: there is little room left", todo)
    return Finding("ok", found)


def wandb(plan: Plan) -> Finding:
    """Mode and key."""
    mode = wandb_mode(plan.config.trainer.wandb)
    if mode != "online":
        return Finding("ok", f"{mode}: nothing is sent")
    if os.environ.get("WANDB_API_KEY"):
        return Finding("ok", "online, with WANDB_API_KEY")
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        known = netrc.netrc().authenticators(host)
    except (OSError, netrc.NetrcParseError):
        known = None
    if known:
        return Finding("ok", "online, with the key that wandb login has kept")
    return Finding("not ok", "online, without a key", "set WANDB_API_KEY, or trainer.wandb offline")
