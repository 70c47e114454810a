"""Find in two minutes what would end a long training after hours: a line for each check.

uv run python preflight.py -c config/real.yaml
srun uv run python preflight.py -c config/real.yaml    on all nodes, as the training

Takes the settings of lightning_train.py, and as many devices. Trains a dozen steps, validates,
saves, uploads and downloads. The first thing that is wrong ends it.
"""

import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import lightning as L
import torch
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from lightning_train import CLASSES, build_training

from src.callbacks import LoaderReport
from src.run.cloud import CLOUD_ERRORS, CloudRun, storage_path
from src.run.config import CHAPTER, choose_device, parse_config
from src.run.errors import UserError, one_line_errors
from src.run.launch import end_with_launcher, launch

STEPS = 12
WARMUP = 4  # steps that are not timed
ERRORS = (UserError, torch.OutOfMemoryError, *CLOUD_ERRORS)


class Clock(Callback):
    """When the warmup has ended, and when the last step has."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Wait for the GPU at these two steps alone: a training does not wait in each."""
        if trainer.global_step in (WARMUP, STEPS):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())


@contextmanager
def check(name: str) -> Iterator[list[str]]:
    """Print what the block adds to the list. Raises UserError if the block fails."""
    found: list[str] = []
    try:
        yield found
    except ERRORS as error:
        raise UserError(f"{name}: {error}") from error
    if rank_zero_only.rank == 0:
        print(f"ok    {name:<11}{', '.join(found)}", flush=True)


def main() -> int:
    """Check one thing after the other. Returns the exit code."""
    config, _ = parse_config(__doc__, CLASSES)
    settings = config.trainer
    is_rank = "LOCAL_RANK" in os.environ or SLURMEnvironment.detect()
    if settings.devices > 1 and settings.num_nodes == 1 and not is_rank:
        return launch(settings.devices)
    if is_rank:
        end_with_launcher()
    output = (CHAPTER / settings.output_dir).resolve()
    output.mkdir(parents=True, exist_ok=True)

    devices = settings.devices * settings.num_nodes
    with check("device") as found:
        device = choose_device(settings.accelerator)
        name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
        found += [f"{devices} x {name}", settings.precision]

    with TemporaryDirectory(dir=output) as folder:
        path = Path(folder, "preflight.ckpt")
        clock = Clock()
        with check("training") as found:
            trainer, module, data = build_training(
                config,
                Path(folder),
                [clock, LoaderReport()],
                max_steps=STEPS,
                limit_val_batches=STEPS,
                enable_checkpointing=False,
                enable_model_summary=False,
            )
            trainer.fit(module, data)
            if trainer.global_step < STEPS:
                raise UserError(f"the whole training has {trainer.global_step} steps")
            found += [f"{STEPS} steps"]

        with check("validation") as found:
            (scores,) = trainer.validate(module, data, verbose=False)
            found += [f"{name} {value:.3f}" for name, value in scores.items()]

        with check("checkpoint") as found:
            trainer.save_checkpoint(path)  # all ranks wait for rank 0, which writes
            if trainer.is_global_zero:
                size = path.stat().st_size
                free = shutil.disk_usage(output).free
                found += [f"{size / 1e6:.1f} MB", f"{free / 1e9:.1f} GB are free"]
                # best.ckpt, last.ckpt, a new one, and the links to old ones under way
                if free < 5 * size:
                    raise UserError(f"no room for five of {', '.join(found)}")

        with check("cloud") as found:
            url = storage_path(settings.cloud_storage_path)
            if url and trainer.is_global_zero:
                seconds = try_cloud(url, path)
                found += [f"{url} gave back what it got", f"{seconds:.1f} s"]

    with check("estimate") as found:
        step = (clock.times[1] - clock.times[0]) / (STEPS - WARMUP)
        steps = trainer.num_training_batches * settings.max_epochs
        hours = step * steps / 3600
        found += [f"{step:.3f} s a step", f"{steps} steps", f"{hours:.2f} h"]
        found += [f"{hours * devices:.2f} device hours, without validation"]
    return 0


def try_cloud(url: str, path: Path) -> float:
    """Upload a checkpoint, download it, compare, delete. Returns the seconds."""
    run = CloudRun(f"{url}/preflight-{secrets.token_hex(4)}")
    start = time.perf_counter()
    run.upload(path)
    copy = path.with_suffix(".copy")
    run.download_newer(run.objects(path.stem), copy)
    seconds = time.perf_counter() - start
    run.fs.rm(run.path, recursive=True)
    if not copy.exists():
        raise UserError(f"{url} did not give back what it got")
    return seconds


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
