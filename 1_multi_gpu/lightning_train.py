"""Train a masked autoencoder with Lightning, on one device or on many.

uv run python lightning_train.py                               as pytorch_train.py, to the bit
uv run python lightning_train.py -c config/two_processes.yaml  DDP on two CPU processes
uv run python lightning_train.py --trainer.devices 8           DDP on eight GPUs
uv run python lightning_train.py --resume output/run_1         go on where a run stopped
"""

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from src.config import CHAPTER, TrainerSettings, choose_device, parse_config
from src.data.lightning_datamodule import FieldDataModule
from src.errors import one_line_errors
from src.lightning_callbacks import AtomicCheckpointIO, Report, StopAndSave
from src.model.lightning_module import AutoencoderModule
from src.tracking import new_run_folder


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


def main() -> None:
    """Read the settings and train."""
    classes = AutoencoderModule, FieldDataModule, LightningSettings
    config, resolved = parse_config(__doc__, None, *classes)
    settings, seed = config.trainer, config.seed_everything
    choose_device(
        settings.accelerator
    )  # one line of error if there is none; Lightning chooses
    folder = Path(config.resume or ".").resolve()  # ModelCheckpoint compares paths
    # Each rank runs this script, from the first line on. Rank 0 alone makes a folder; the others
    # get None, and write nothing.
    if not config.resume and (
        new := rank_zero_only(new_run_folder)(CHAPTER / settings.output_dir)
    ):
        folder = new
        (folder / "config.yaml").write_text(resolved)

    L.seed_everything(seed, workers=True, verbose=False)
    shared = {"seed": seed, "optimizer": vars(config.optimizer)}
    data = build(FieldDataModule, config.data, shared)
    module = build(AutoencoderModule, config.model, shared)
    trainer = L.Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        strategy=settings.strategy,
        max_epochs=settings.max_epochs,
        gradient_clip_val=settings.gradient_clip_val,
        log_every_n_steps=settings.log_every_n_steps,
        deterministic="warn" if settings.deterministic else False,
        default_root_dir=folder,
        use_distributed_sampler=False,  # RankBatches shares the batches out
        logger=False,  # Report does it
        enable_progress_bar=sys.stderr.isatty(),  # in a log file every update is a new line
        plugins=[AtomicCheckpointIO()],
        callbacks=[
            Report(settings.wandb, settings.picture_every_n_epochs),
            StopAndSave(settings.max_steps, settings.checkpoint_every_n_steps),
            ModelCheckpoint(
                filename="best", monitor="val_loss", enable_version_counter=False
            ),
            # One of its own: save_last=True would skip epochs without a new best.
            ModelCheckpoint(filename="last", enable_version_counter=False),
        ],
    )
    trainer.fit(
        module,
        data,
        ckpt_path=folder / "checkpoints/last.ckpt" if config.resume else None,
    )


def build(kind: type, settings: Namespace, shared: dict[str, Any]) -> Any:
    """Instantiate a class with its section, and with the shared settings that it accepts."""
    known = inspect.signature(kind).parameters
    return kind(
        **vars(settings), **{name: shared[name] for name in shared if name in known}
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
