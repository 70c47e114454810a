"""Train a masked autoencoder with Lightning, on one device or on many; go on after anything.

uv run python lightning_train.py                               as chapter 0's training, to the bit
uv run python lightning_train.py -c config/two_processes.yaml  DDP on two CPU processes
uv run python lightning_train.py --trainer.run_name mine       begin this run, or go on with it
uv run python lightning_train.py --resume output/run_1         go on where a run stopped
uv run python lightning_train.py --resume s3://embedded/checkpoints/mine    from the cloud
"""

import argparse
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only

from src.callbacks import CloudUploadCallback, storage_path
from src.checkpoint_files import DurableCheckpointIO
from src.cloud_run import find_run
from src.config import CHAPTER, TrainerSettings, choose_device, parse_config
from src.data.lightning_datamodule import FieldDataModule
from src.environment import load_environment
from src.errors import UserError, one_line_errors
from src.launch import has_rank, launch
from src.loader_report import LoaderReport
from src.model.lightning_module import AutoencoderModule
from src.report_callback import Report
from src.stop_and_save import StopAndSave
from src.tracking import new_run_folder


@dataclass
class LightningSettings(TrainerSettings):
    """Chapter 0's settings, some with the names of Lightning's Trainer, some for a run's copy.

    Args:
        devices: devices of each machine, with one process for each.
        num_nodes: machines.
        strategy: auto takes ddp for several devices; our clipping and pictures know no other.
        precision: numbers that a step computes in; 16-mixed needs a GPU.
        run_name: begin the run of this name, or go on with it; null makes a new one.
        resume_policy: auto goes on if there is a checkpoint, must demands one, never refuses one.
        cloud_storage_path: where to upload to; null: CLOUD_STORAGE_PATH or embedded; or none.
        upload_every_n_steps: upload inside an epoch too; 0 means at its end only.
    """

    devices: PositiveInt = 1
    num_nodes: PositiveInt = 1
    strategy: Literal["auto", "ddp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    run_name: str | None = None
    resume_policy: Literal["auto", "must", "never"] = "auto"
    cloud_storage_path: str | None = None
    upload_every_n_steps: NonNegativeInt = 0


CLASSES = AutoencoderModule, FieldDataModule, LightningSettings


def main() -> int:
    """Read the settings and train. Returns the exit code."""
    load_environment()
    config, resolved, folder, checkpoint = find_start(sys.argv[1:])
    settings = config.trainer
    # For its one line of error. Lightning chooses the device itself.
    choose_device(settings.accelerator)
    if settings.devices > 1 and settings.num_nodes == 1 and not has_rank():
        return launch(settings.devices)

    # From here on every rank runs every line. Rank 0 alone makes a folder, and writes.
    if not folder:
        is_first = rank_zero_only.rank == 0
        folder = new_run_folder(CHAPTER / settings.output_dir) if is_first else Path()
    if not checkpoint and rank_zero_only.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    callbacks = [
        Report(settings.wandb, settings.picture_every_n_epochs, resolved),
        StopAndSave(settings.max_steps, settings.checkpoint_every_n_steps),
        CloudUploadCallback(
            settings.cloud_storage_path,
            upload_every_n_steps=settings.upload_every_n_steps,
            run_name=settings.run_name,
        ),
        ModelCheckpoint(
            filename="best", monitor="val_loss", enable_version_counter=False
        ),
        # One of its own: save_last=True would skip epochs without a new best.
        ModelCheckpoint(filename="last", enable_version_counter=False),
        LoaderReport(),
    ]
    trainer, module, data = build_training(config, folder, callbacks)
    trainer.fit(module, data, ckpt_path=checkpoint)
    return 0


def find_start(arguments: list[str]) -> tuple[Namespace, str, Path | None, Path | None]:
    """The settings, also as YAML, the run's folder, and the checkpoint that it goes on from.

    A new run without a name has no folder yet.
    """
    # Needed before the settings are read: their file may have to be downloaded into this folder.
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--resume", default="")
    early.add_argument("--trainer.output_dir", default="output", dest="output_dir")
    early_options, _ = early.parse_known_args(arguments)
    if "://" in early_options.resume:
        cloud, _, name = early_options.resume.rstrip("/").rpartition("/")
        folder = CHAPTER / early_options.output_dir / name
        find_run(folder, "must", cloud)
        arguments = [*arguments, f"--resume={folder}"]  # the last one counts
    config, resolved = parse_config(__doc__, arguments, *CLASSES)
    settings = config.trainer
    if config.resume:
        folder = Path(config.resume).resolve()
        return config, resolved, folder, find_run(folder, "must", cloud="")
    if not settings.run_name:
        return config, resolved, None, None
    folder = CHAPTER / settings.output_dir / settings.run_name
    checkpoint = find_run(
        folder, settings.resume_policy, storage_path(settings.cloud_storage_path)
    )
    if checkpoint:
        # The saved settings apply; a setting given here must not contradict them.
        config, resolved = parse_config(
            __doc__, [*arguments, f"--resume={folder}"], *CLASSES
        )
    return config, resolved, folder, checkpoint


def build_training(
    config: Namespace, folder: Path, callbacks: list[Callback]
) -> tuple[L.Trainer, AutoencoderModule, FieldDataModule]:
    """Trainer, module and data of these settings."""
    settings, seed = config.trainer, config.seed_everything
    device = choose_device(settings.accelerator)
    if settings.precision == "16-mixed" and device.type == "cpu":
        # Lightning would take bfloat16.
        raise UserError("trainer.precision: 16-mixed needs a GPU; bf16-mixed does not")
    L.seed_everything(seed, workers=True, verbose=False)
    # Deterministic mode writes NaN to each new tensor, to expose reads before a write. It costs
    # time, and changes no result (chapter 4 compares).
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    shared = {"seed": seed, "optimizer": vars(config.optimizer)}
    data = build(FieldDataModule, config.get("data"), shared)
    module = build(AutoencoderModule, config.get("model"), shared)
    trainer = L.Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        strategy=settings.strategy,
        precision=settings.precision,
        max_epochs=settings.max_epochs,
        gradient_clip_val=settings.gradient_clip_val,
        log_every_n_steps=settings.log_every_n_steps,
        deterministic="warn" if settings.deterministic else False,
        default_root_dir=folder,
        use_distributed_sampler=False,  # ResumableBatches shares the batches out
        logger=False,  # Report does it
        enable_progress_bar=sys.stderr.isatty(),  # in a log file every update is a new line
        plugins=[DurableCheckpointIO()],
        callbacks=callbacks,
    )
    return trainer, module, data


def build(kind: type, settings: Namespace | None, shared: dict[str, Any]) -> Any:
    """Instantiate a class with its section, and with the shared settings that it accepts.

    A class without arguments has no section.
    """
    accepted = inspect.signature(kind).parameters
    arguments = {name: value for name, value in shared.items() if name in accepted}
    return kind(**arguments, **vars(settings or Namespace()))


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
