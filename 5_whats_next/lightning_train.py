"""Train a masked autoencoder with Lightning, on one device or on many.

uv run python lightning_train.py                               as chapter 0's training, to the bit
uv run python lightning_train.py -c config/two_processes.yaml  DDP on two CPU processes
uv run python lightning_train.py --trainer.accelerator cuda --trainer.devices 8    on eight GPUs
uv run python lightning_train.py --trainer.run_name mine       begin this run, or go on with it
uv run python lightning_train.py --resume output/run_1         go on where a run stopped
uv run python lightning_train.py --resume s3://embedded/checkpoints/mine
"""

import gc
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from src.callbacks import (
    CloudUploadCallback,
    DeviceHours,
    LoaderReport,
    Report,
    StopAndSave,
)
from src.data.lightning_datamodule import FieldDataModule
from src.model.lightning_module import AutoencoderModule
from src.run.checkpoint_io import AtomicCheckpointIO
from src.run.config import CHAPTER, TrainerSettings, choose_device
from src.run.errors import UserError, one_line_errors
from src.run.launch import end_with_launcher, launch
from src.run.resume import find_resume_point, lock_folder
from src.run.tracking import new_run_folder


@dataclass
class LightningSettings(TrainerSettings):
    """Chapter 0's settings and more, with the names of Lightning's Trainer.

    Args:
        devices: devices of each machine, with one process for each.
        num_nodes: machines.
        strategy: auto takes ddp for several devices; our clipping works with no other.
        precision: of the numbers that a step computes with; weights stay in float32.
        run_name: begin the run of this name, or go on with it; null makes a new one.
        cloud_storage_path: where runs are uploaded to; null follows the variable
            CLOUD_STORAGE_PATH, and else takes s3://embedded/checkpoints; none uploads nothing.
        upload_every_n_steps: upload inside an epoch too; 0 means at its end only.
    """

    devices: PositiveInt = 1
    num_nodes: PositiveInt = 1
    strategy: Literal["auto", "ddp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    run_name: str | None = None
    cloud_storage_path: str | None = None
    upload_every_n_steps: NonNegativeInt = 0


# Their arguments are the settings: the sections model, data and trainer of the config. To train a
# module of your own on data of your own, change the two imports.
CLASSES = (AutoencoderModule, FieldDataModule, LightningSettings)


def main() -> int:
    """Read the settings and train. Returns the exit code."""
    resume_point = find_resume_point(__doc__, CLASSES)
    config = resume_point.config
    settings = config.trainer
    # A rank of launch, torchrun or srun?
    is_rank = "LOCAL_RANK" in os.environ or SLURMEnvironment.detect()
    if settings.devices > 1 and settings.num_nodes == 1 and not is_rank:
        if resume_point.lock:
            resume_point.lock.release()  # rank 0 takes it
        return launch(settings.devices)
    if is_rank:
        end_with_launcher()
    world_size = settings.devices * settings.num_nodes
    started = int(os.environ.get("WORLD_SIZE", world_size))
    if started != world_size:
        # After torchrun without --trainer.devices each process would train alone.
        raise UserError(f"trainer.devices, num_nodes: {started} processes were started")

    # What has been imported stays until the end, so Python's garbage collector need not search it
    # again and again: a tenth of a second less until the first batch.
    gc.freeze()

    # From here on every rank runs every line.
    folder = resume_point.folder or Path()  # the other ranks write nothing
    if not resume_point.folder and rank_zero_only.rank == 0:
        folder = new_run_folder(CHAPTER / settings.output_dir).resolve()
        resume_point.lock = lock_folder(folder)

    callbacks = [
        # Before StopAndSave: a checkpoint has the row of its own step.
        Report(settings.wandb, resume_point.settings),
        StopAndSave(
            settings.max_steps,
            # What is uploaded has to be saved before.
            settings.checkpoint_every_n_steps or settings.upload_every_n_steps,
        ),
        CloudUploadCallback(
            settings.cloud_storage_path,
            upload_every_n_steps=settings.upload_every_n_steps,
            run_name=settings.run_name,
        ),
        DeviceHours(),
        # Written after a validation, before StopAndSave's last.ckpt.
        ModelCheckpoint(
            filename="best",
            monitor="val_loss",
            save_on_train_epoch_end=False,
            enable_version_counter=False,
        ),
        LoaderReport(),
    ]
    trainer, module, data = build_training(config, folder, callbacks)
    trainer.fit(module, data, ckpt_path=resume_point.checkpoint)
    return 0


def build_training(
    config: Namespace, folder: Path, callbacks: list[Callback], **trainer_arguments: Any
) -> tuple[L.Trainer, Any, Any]:
    """Trainer, module and data of these settings.

    Args:
        config: from parse_config.
        folder: where the Trainer writes to.
        callbacks: the Trainer's.
        trainer_arguments: further arguments of the Trainer.

    Raises:
        UserError: the machine has not got the devices that the settings ask for.
    """
    seed = config.seed_everything
    L.seed_everything(seed, workers=True, verbose=False)
    shared = {"seed": seed, "optimizer": vars(config.optimizer)}
    module_class, data_class, _ = CLASSES
    data = build(data_class, config.get("data"), shared)
    module = build(module_class, config.get("model"), shared)

    settings = config.trainer
    device = choose_device(settings.accelerator).type
    if settings.precision == "16-mixed" and device == "cpu":
        # Lightning would take bfloat16.
        raise UserError("trainer.precision: 16-mixed needs a GPU; bf16-mixed does not")
    try:
        trainer = L.Trainer(
            # Lightning's auto would take Apple's GPU.
            accelerator=choose_device(settings.accelerator).type,
            devices=settings.devices,
            num_nodes=settings.num_nodes,
            strategy=settings.strategy,
            precision=settings.precision,
            max_epochs=settings.max_epochs,
            gradient_clip_val=settings.gradient_clip_val,
            log_every_n_steps=settings.log_every_n_steps,
            deterministic="warn" if settings.deterministic else False,
            default_root_dir=folder,
            num_sanity_val_steps=0,  # its two batches may have no ocean
            use_distributed_sampler=getattr(data, "use_distributed_sampler", True),
            logger=False,  # Report does it
            enable_progress_bar=sys.stderr.isatty(),  # in a log file every update is a new line
            plugins=[AtomicCheckpointIO()],
            callbacks=callbacks,
            **trainer_arguments,
        )
    except MisconfigurationException as error:
        # Such as more devices than there are.
        raise UserError(f"trainer: {error}") from error
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
