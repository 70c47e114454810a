"""Train a masked autoencoder with Lightning, on one device or on many.

uv run python lightning_train.py                               as chapter 0's training, to the bit
uv run python lightning_train.py -c config/two_processes.yaml  DDP on two CPU processes
uv run python lightning_train.py --trainer.accelerator cuda --trainer.devices 8    on eight GPUs
uv run python lightning_train.py --resume output/run_1         go on where a run stopped
"""

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only

from src.callbacks.report_callback import Report
from src.callbacks.stop_and_save import StopAndSave
from src.data.lightning_datamodule import FieldDataModule
from src.model.lightning_module import AutoencoderModule
from src.run.atomic_checkpoint_io import AtomicCheckpointIO
from src.run.config import CHAPTER, TrainerSettings, choose_device, parse_config
from src.run.errors import UserError, one_line_errors
from src.run.launch import has_rank, launch
from src.run.quiet import hide_two_messages
from src.run.tracking import new_run_folder


@dataclass
class LightningSettings(TrainerSettings):
    """Chapter 0's settings and three more, with the names of Lightning's Trainer.

    Args:
        devices: devices of each machine, with one process for each.
        num_nodes: machines.
        strategy: auto takes ddp for several devices; our clipping works with no other.
    """

    devices: PositiveInt = 1
    num_nodes: PositiveInt = 1
    strategy: Literal["auto", "ddp"] = "auto"


def main() -> int:
    """Read the settings and train. Returns the exit code."""
    config, resolved = parse_config(
        __doc__, None, AutoencoderModule, FieldDataModule, LightningSettings
    )
    settings = config.trainer
    # For one line of error. Lightning chooses the devices itself.
    device = choose_device(settings.accelerator)
    if device.type == "cuda" and settings.devices > torch.cuda.device_count():
        raise UserError(
            f"trainer.devices: {settings.devices}; here are {torch.cuda.device_count()}"
        )
    if settings.devices > 1 and settings.num_nodes == 1 and not has_rank():
        return launch(settings.devices)

    # From here on every rank runs every line.
    if config.resume:
        folder = Path(config.resume).resolve()
    elif rank_zero_only.rank == 0:
        # ModelCheckpoint compares paths, links and all.
        folder = new_run_folder(CHAPTER / settings.output_dir).resolve()
    else:
        folder = Path()  # the other ranks write nothing

    callbacks = [
        Report(settings.wandb, settings.picture_every_n_epochs, resolved),
        StopAndSave(settings.max_steps, settings.checkpoint_every_n_steps),
        ModelCheckpoint(
            filename="best", monitor="val_loss", enable_version_counter=False
        ),
        # One of its own: save_last=True would skip epochs without a new best.
        ModelCheckpoint(filename="last", enable_version_counter=False),
    ]
    trainer, module, data = build_training(config, folder, callbacks)
    checkpoint = folder / "checkpoints" / "last.ckpt" if config.resume else None
    trainer.fit(module, data, ckpt_path=checkpoint)
    return 0


def build_training(
    config: Namespace, folder: Path, callbacks: list[Callback]
) -> tuple[L.Trainer, AutoencoderModule, FieldDataModule]:
    """Trainer, module and data of these settings; the Trainer writes to this folder."""
    hide_two_messages()
    seed = config.seed_everything
    L.seed_everything(seed, workers=True, verbose=False)
    shared = {"seed": seed, "optimizer": vars(config.optimizer)}
    data = build(FieldDataModule, config.get("data"), shared)
    module = build(AutoencoderModule, config.get("model"), shared)

    settings = config.trainer
    trainer = L.Trainer(
        # Lightning's auto would take Apple's GPU.
        accelerator=choose_device(settings.accelerator).type,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        strategy=settings.strategy,
        max_epochs=settings.max_epochs,
        gradient_clip_val=settings.gradient_clip_val,
        log_every_n_steps=settings.log_every_n_steps,
        deterministic="warn" if settings.deterministic else False,
        default_root_dir=folder,
        use_distributed_sampler=False,  # our loaders share the samples out
        logger=False,  # Report does it
        enable_progress_bar=sys.stderr.isatty(),  # in a log file every update is a new line
        plugins=[AtomicCheckpointIO()],
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
