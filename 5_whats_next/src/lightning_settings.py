"""The settings that Lightning adds to chapter 0's, and what is checked before a process starts."""

import logging
import os
import socket
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy

from src.callbacks import CloudUploadCallback, storage_path
from src.cloud_folder import filesystem_of
from src.cloud_report import CloudReport
from src.config import CHAPTER, TrainerSettings, run_folder
from src.device import choose_device
from src.durable_checkpoint import InsideCheckpoint
from src.errors import UserError
from src.lightning_callbacks import Report
from src.lightning_ranks import launch_id
from src.preemption import Preemption

STRATEGIES = ("auto", "ddp", "fsdp")


@dataclass
class LightningSettings(TrainerSettings):
    """How long, on what, and what is left behind. The names are those of Lightning's Trainer.

    Args:
        devices: devices of each machine to train on, with one process for each.
        num_nodes: machines; see the README for how to start them.
        strategy: ddp has a copy of the model on each device, fsdp a share of it; auto takes ddp.
        micro_batches: compute each batch in so many parts, one after the other: memory for time.
        run_name: of the run's folder, on disk and in the cloud; null makes up one.
        resume_policy: a run with this name: auto goes on, must does or fails, never begins anew.
        cloud_storage_path: where checkpoints are uploaded; null follows the variable
            CLOUD_STORAGE_PATH, and else takes s3://embedded/checkpoints; none uploads nothing.
        upload_interval: epochs between two uploads.
        upload_every_n_steps: upload inside an epoch too, as far as there are checkpoints; 0: no.
        precision: numbers that matrix products are computed in; weights and sums keep 32 bits.
    """

    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    micro_batches: int = 1
    run_name: str | None = None
    resume_policy: Literal["auto", "must", "never"] = "auto"
    cloud_storage_path: str | None = None
    upload_interval: int = 1
    upload_every_n_steps: int = 0
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"


def check_devices(accelerator: str, devices: int, num_nodes: int, batch_size: int) -> None:
    """Raise UserError for devices that are not there or cannot share the batch.

    Lightning would find most of it too, but after it has started the other processes.
    """
    if num_nodes < 1:
        raise UserError(f"trainer.num_nodes: {num_nodes} is too small; allowed: from 1")
    kind = choose_device("cuda" if accelerator == "gpu" else accelerator).type
    # CPU processes may share cores: two of them are the smallest way to try DDP.
    counts = {"cuda": torch.cuda.device_count(), "mps": 1, "cpu": max(2, os.cpu_count() or 1)}
    if not 1 <= devices <= counts[kind]:
        raise UserError(
            f"trainer.devices: {devices} {kind} devices are not here; allowed: 1 to {counts[kind]}"
        )
    world_size = devices * num_nodes
    if batch_size % world_size:
        raise UserError(
            f"data.batch_size: {batch_size} samples cannot be shared by {world_size} devices; "
            f"allowed: multiples of {world_size}"
        )
    if world_size > 1:
        check_port()


def check_port() -> None:
    """Raise UserError if the port that the ranks shall meet at belongs to another program."""
    port = os.environ.get("MASTER_PORT", "")
    # A process that somebody else has started (torchrun, SLURM, rank 0) meets them there.
    if not port or "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except (OSError, ValueError, OverflowError) as error:
            raise UserError(
                f"MASTER_PORT: cannot listen at port {port} ({error}); "
                "set another, or unset it for a free one"
            ) from error


def make_strategy(name: str, world_size: int) -> str | Strategy:
    """The strategy of a name. Raises UserError for an unknown one.

    Lightning's own "fsdp" is the older FullyShardedDataParallel, which needs a GPU. This is
    fully_shard, its successor, which shards each parameter by itself and also runs on CPUs
    (https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
    """
    if name == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=world_size, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    if name not in STRATEGIES:
        raise UserError(f"trainer.strategy: {name} is unknown; allowed: {', '.join(STRATEGIES)}")
    return name


def make_callbacks(settings: LightningSettings, resolved: str) -> list[Callback]:
    """What happens beside the training: report, interrupts, checkpoints best.ckpt and last.ckpt."""
    callbacks: list[Callback] = [
        Report(settings.picture_every_n_epochs, resolved),
        Preemption(),
        CloudReport(),
        CloudUploadCallback(
            settings.cloud_storage_path,
            upload_interval=settings.upload_interval,
            filesystem=filesystem_of(storage_path(settings.cloud_storage_path)),
            upload_every_n_steps=settings.upload_every_n_steps,
            run_name=settings.run_name,
        ),
        # The best one first: a crash in between then does both again, instead of losing one.
        ModelCheckpoint(filename="best", monitor="val_loss", enable_version_counter=False),
        # Not save_last=True, which saves only when there is a new best one.
        ModelCheckpoint(filename="last", every_n_epochs=1, enable_version_counter=False),
    ]
    if every := settings.checkpoint_every_n_steps:
        inside = InsideCheckpoint(
            filename="last", every_n_train_steps=every, enable_version_counter=False
        )
        callbacks.append(inside)
    return callbacks


def run_to_resume(
    resume: str | None, output_dir: str, option: str = "--resume"
) -> tuple[Path | None, Path | None]:
    """The folder and the checkpoint to go on from, if this run continues another one.

    Either ``option`` names it, or torchrun has restarted its processes: then it is the run that
    they had begun, recognised by the launch's id.
    """
    if resume:
        path = Path(resume)
        try:
            folder = run_folder(resume)
        except UserError as error:
            raise UserError(str(error).replace("--resume", option)) from error
        checkpoint = path if path.suffix else folder / "checkpoints" / "last.ckpt"
        if not checkpoint.is_file():
            raise UserError(f"{option}: there is no checkpoint {checkpoint}")
        return folder, checkpoint
    if (launch := launch_id()) and int(os.environ["TORCHELASTIC_RESTART_COUNT"]):
        for note in (CHAPTER / output_dir).glob("run_*/launch_id"):
            if note.read_text() == launch:
                last = note.parent / "checkpoints" / "last.ckpt"
                return note.parent, last if last.is_file() else None
    return None, None


def quiet() -> None:
    """Leave out what Lightning prints at each start; ``Report`` prints what is worth a look."""
    for name in ("lightning.pytorch", "lightning.fabric.utilities"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning asks for more workers whatever the data; these are in memory.
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    # A checkpoint is used in another run's folder, or in its own again: both are meant.
    warnings.filterwarnings("ignore", message="The dirpath has changed")
    warnings.filterwarnings("ignore", message="Checkpoint directory .* is not empty")
    # It can: TrainBatches asks for the step.
    warnings.filterwarnings("ignore", message=".*your dataloader is not resumable")
    # One process on a cluster's login node is meant.
    warnings.filterwarnings("ignore", message=".*`srun` command is available")
    # There is no val_loss yet where max_steps ends a run in its first epoch.
    warnings.filterwarnings("ignore", message=".*could not find the monitored key")
    # The summary's estimate of the model's size is not what anybody looks at.
    warnings.filterwarnings("ignore", message="Precision .* is not supported by the model summary")
    # With 16-mixed the scaler may leave the first step out; the schedule follows the data.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    # Lightning's own code, with this version of PyTorch.
    warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated")
