"""Metrics, pictures and final scores of a Lightning training."""

import math
import os
import time
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse.typing import NonNegativeInt
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from src.model.lightning_module import AutoencoderModule
from src.run.distributed import check_samples, check_world_size, machines_of_ranks
from src.run.report import draw, report
from src.run.tracking import Tracker, WandbMode, save_settings


class Report(Callback):
    """metrics.csv and wandb for any module; pictures and the final scores for our own.

    Rank 0 alone writes: the others would write the same files.

    Args:
        wandb: where metrics go; null follows the variable WANDB_MODE, and else stays offline.
        picture_every_n_epochs: epochs between two pictures, which also come at the end; 0 means
            none.
        settings: what config.yaml gets; empty where LightningCLI writes it.
    """

    def __init__(
        self,
        wandb: WandbMode | None = None,
        picture_every_n_epochs: NonNegativeInt = 1,
        settings: str = "",
    ) -> None:
        self.settings = settings
        self.wandb = wandb
        self.picture_every = picture_every_n_epochs
        self.run_id = ""
        self.tracker: Any = None  # on rank 0, once the training begins
        self.machines: list[str] = []  # of each rank, if there are several machines

    def state_dict(self) -> dict[str, str]:
        """What Lightning puts into each checkpoint, so that wandb goes on with its run."""
        return {"run_id": self.run_id}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """What a checkpoint has."""
        self.run_id = state["run_id"]

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Refuse ranks that repeat each other or train alone, and begin the report."""
        check_world_size(trainer)
        check_samples(trainer.train_dataloader, trainer.world_size)
        if trainer.num_nodes > 1:
            self.machines = machines_of_ranks()
        self.begin(trainer, module)

    @rank_zero_only
    def begin(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Say what the run uses: a run on the wrong hardware gives no error."""
        strategy = f"{type(trainer.strategy).__name__} on {module.device}"
        steps = trainer.max_epochs * trainer.num_training_batches
        folder = os.path.relpath(trainer.default_root_dir)
        print(
            f"devices   {trainer.num_devices} on each of {trainer.num_nodes} nodes; {strategy}"
        )
        # One line for each machine.
        for rank in range(0, len(self.machines), trainer.num_devices):
            print(f"machine   {self.machines[rank]}, from rank {rank}")
        print(f"training  steps {trainer.global_step} to {steps}")
        print(f"output    {folder}", flush=True)
        if self.settings:
            # Also after a resume, which may have changed some: the next one reads them from here.
            save_settings(Path(trainer.default_root_dir), self.settings)
        self.open_tracker(trainer)
        # Lightning skips this call where a run goes on inside an epoch.
        self.on_train_epoch_start(trainer)

    def open_tracker(self, trainer: L.Trainer) -> Tracker:
        """metrics.csv in the run's folder, and wandb."""
        folder = Path(trainer.default_root_dir)
        self.tracker = Tracker(folder, self.wandb, trainer.global_step, self.run_id)
        self.run_id = self.tracker.run.id
        return self.tracker

    def on_train_epoch_start(self, trainer: L.Trainer, *_: object) -> None:
        """Start the clock."""
        self.start = time.perf_counter()
        self.first_step = trainer.global_step

    def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
        """Remember the learning rate before the step changes it."""
        self.lr = float(trainer.optimizers[0].param_groups[0]["lr"])

    @rank_zero_only
    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Log a row every log_every_n_steps."""
        step = trainer.global_step
        if step % trainer.log_every_n_steps:
            return
        # The samples of all devices; a data module that is not ours may have no batch_size.
        batch_size = getattr(trainer.datamodule, "batch_size", math.nan)
        samples = (step - self.first_step) * batch_size
        row = logged(trainer, is_train=True)
        row["lr"] = self.lr
        row["samples_per_second"] = samples / (time.perf_counter() - self.start)
        self.tracker.log(step, trainer.current_epoch, row)

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Log the scores of an epoch, and draw."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        epoch = trainer.current_epoch
        scores = logged(trainer, is_train=False)
        self.tracker.log(trainer.global_step, epoch, scores)
        text = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        print(f"epoch {epoch + 1} of {trainer.max_epochs}: {text}", flush=True)
        every = self.picture_every or math.inf
        if isinstance(module, AutoencoderModule) and (epoch + 1) % every == 0:
            val_set = trainer.datamodule.val_set
            draw(module.model, val_set, self.tracker, trainer.global_step, scores={})

    def on_exception(
        self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException
    ) -> None:
        """Name the ranks that may be lost: the error of a connection has an address alone."""
        for rank, machine in enumerate(self.machines):
            address = machine.rpartition(", ")[2]
            if f"[{address}]" in str(exception) and rank != trainer.global_rank:
                print(f"lost      rank {rank} on {machine}", flush=True)

    @rank_zero_only
    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Score the model beside the baselines. The other ranks have ended, none waits."""
        if not isinstance(module, AutoencoderModule):
            return
        # Lightning does not call on_train_start if nothing is left to train.
        tracker = self.tracker or self.open_tracker(trainer)
        # Lightning has moved it to the CPU.
        model = module.model.to(trainer.strategy.root_device)
        val_set, step = trainer.datamodule.val_set, trainer.global_step
        report(model, val_set, tracker, step, self.picture_every > 0)


def logged(trainer: L.Trainer, is_train: bool) -> dict[str, float]:
    """What the module has logged: names with train_ belong to a step, others to an epoch."""
    metrics = {}
    for name, value in trainer.callback_metrics.items():
        belongs_to_step = name.startswith("train_")
        if belongs_to_step == is_train:
            metrics[name] = value.item()
    return metrics
