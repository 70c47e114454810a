"""Train a masked autoencoder with Lightning, on one device or on many; go on after anything.

uv run python lightning_train.py                               as chapter 0's training, to the bit
uv run python lightning_train.py -c config/two_processes.yaml  DDP on two CPU processes
uv run python lightning_train.py --trainer.run_name mine       begin this run, or go on with it
uv run python lightning_train.py --resume output/run_1         go on where a run stopped
uv run python lightning_train.py --resume s3://embedded/checkpoints/mine    from the cloud
"""

import inspect
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only

from src.callbacks.cloud_upload import CloudUploadCallback
from src.callbacks.loader_report import LoaderReport
from src.callbacks.report_callback import Report
from src.callbacks.stop_and_save import StopAndSave
from src.data.checked_store import configure_libraries
from src.data.lightning_datamodule import FieldDataModule
from src.model.lightning_module import AutoencoderModule
from src.run.checkpoint_files import DurableCheckpointIO
from src.run.config import CHAPTER, TrainerSettings, choose_device
from src.run.errors import UserError, one_line_errors
from src.run.launch import has_rank, launch
from src.run.preemption import end_program_in_time
from src.run.quiet import hide_two_messages
from src.run.resume import Start, find_start, hold
from src.run.tracking import new_run_folder


@dataclass
class LightningSettings(TrainerSettings):
    """Chapter 0's settings, more of Lightning's Trainer, and where a run is kept and resumed.

    Args:
        devices: devices of each machine, with one process for each.
        num_nodes: machines.
        strategy: auto takes ddp for several devices; our clipping and pictures know no other.
        precision: numbers that a step computes in; 16-mixed needs a GPU.
        run_name: begin the run of this name, or go on with it; null makes a new one.
        resume_policy: auto goes on from a checkpoint, and begins if there is none; must ends with
            an error if there is none; never ends with an error if there is one.
        cloud_storage_path: where to upload to; null takes the variable CLOUD_STORAGE_PATH, or else
            s3://embedded/checkpoints; none uploads nothing.
        upload_every_n_steps: upload after so many steps, too; 0 means only after each epoch. Saves
            as often, if checkpoint_every_n_steps is 0.
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
    configure_libraries()
    with ExitStack() as stack:
        start = find_start(__doc__, sys.argv[1:], CLASSES, stack)
        return train(start, stack)


def train(start: Start, stack: ExitStack) -> int:
    """Train on the devices of the settings. Returns the exit code."""
    config = start.config
    settings = config.trainer
    # For one line of error. Lightning chooses the devices itself.
    device = choose_device(settings.accelerator)
    if device.type == "cuda" and settings.devices > torch.cuda.device_count():
        raise UserError(
            f"trainer.devices: {settings.devices}; here are {torch.cuda.device_count()}"
        )
    if settings.devices > 1 and settings.num_nodes == 1 and not has_rank():
        stack.close()  # rank 0 takes the folder
        return launch(settings.devices)

    # From here on every rank runs every line. Rank 0 alone makes a folder, and writes.
    end_program_in_time()
    stack.callback(signal.set_wakeup_fd, -1)
    if start.folder:
        folder = start.folder
    elif rank_zero_only.rank == 0:
        folder = new_run_folder((CHAPTER / settings.output_dir).resolve())
        hold(folder, stack)
    else:
        folder = Path()  # the other ranks write nothing
    if rank_zero_only.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    callbacks = [
        Report(settings.wandb, settings.picture_every_n_epochs, start.resolved),
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
    trainer.fit(module, data, ckpt_path=start.checkpoint)
    return 0


def build_training(
    config: Namespace, folder: Path, callbacks: list[Callback]
) -> tuple[L.Trainer, AutoencoderModule, FieldDataModule]:
    """Trainer, module and data of these settings."""
    hide_two_messages()
    settings, seed = config.trainer, config.seed_everything
    is_float16 = settings.precision == "16-mixed"
    if is_float16 and choose_device(settings.accelerator).type == "cpu":
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
        use_distributed_sampler=False,  # our loaders share the samples out
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
