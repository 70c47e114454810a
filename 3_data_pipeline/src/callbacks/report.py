"""What a run says and leaves behind: metrics.csv, wandb, final scores, pictures."""

import math
import os
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from src.model.lightning_module import AutoencoderModule
from src.run.checkpoint import read_checkpoint
from src.run.evaluation import as_text, report
from src.run.plots import plot_curves, plot_reconstructions
from src.run.tracking import Tracker, WandbMode


class Report(Callback):
    """metrics.csv and wandb for any module; final scores and pictures for our own.

    Rank 0 alone writes: the others would write the same files.

    Args:
        wandb: where metrics go; null follows the variable WANDB_MODE, and else stays offline.
        settings: the run's configuration, as YAML; empty where LightningCLI writes it.
    """

    def __init__(self, wandb: WandbMode | None = None, settings: str = "") -> None:
        self.wandb = wandb
        self.settings = settings
        self.rows: list[dict[str, Any]] = []  # of metrics.csv
        self.run_id = ""  # of wandb

    def on_save_checkpoint(
        self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the settings and the curve so far, as chapter 0's checkpoints have them."""
        checkpoint["settings"] = self.settings
        checkpoint["rows"] = self.rows
        checkpoint["run_id"] = self.run_id

    def on_load_checkpoint(
        self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on with them."""
        self.rows = checkpoint["rows"]
        self.run_id = checkpoint["run_id"]

    # Not in on_train_start, which Lightning leaves out if nothing is left to train.
    @rank_zero_only
    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Begin, or go on with, the run's files."""
        folder = Path(trainer.default_root_dir)
        print(f"output    {os.path.relpath(folder)}", flush=True)
        self.tracker = Tracker(
            folder, self.wandb, self.settings, self.rows, self.run_id
        )
        self.run_id = self.tracker.run.id

    @rank_zero_only
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Say what the run uses: a run on the wrong hardware gives no error."""
        steps = trainer.max_epochs * trainer.num_training_batches
        print(
            f"devices   {trainer.world_size}, {type(trainer.strategy).__name__} on {module.device}"
        )
        print(f"training  steps {trainer.global_step} to {steps}", flush=True)
        # Lightning skips this call where a run goes on inside an epoch.
        self.on_train_epoch_start(trainer)

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
        if step % trainer.log_every_n_steps == 0:
            # A data module that is not ours may have no batch_size.
            batch_size = getattr(trainer.datamodule, "batch_size", math.nan)
            samples = (step - self.first_step) * batch_size
            row = logged(trainer, is_train=True)
            row["lr"] = self.lr
            row["samples_per_second"] = samples / (time.perf_counter() - self.start)
            self.tracker.log(step, trainer.current_epoch, row)

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, *_: object) -> None:
        """Log the scores of an epoch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            scores = logged(trainer, is_train=False)
            self.tracker.log(trainer.global_step, trainer.current_epoch, scores)
            print(f"epoch {trainer.current_epoch + 1}: {as_text(scores)}", flush=True)

    @rank_zero_only
    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Score the best checkpoint beside the baselines. The other ranks have ended."""
        folder = Path(trainer.default_root_dir)
        best = folder / "checkpoints/best.ckpt"
        if isinstance(module, AutoencoderModule) and best.exists():
            module.load_state_dict(read_checkpoint(best)["state_dict"])
            # Lightning has moved it to the CPU.
            model = module.model.to(trainer.strategy.root_device)
            loaders = module.loaders
            scores = report(model, loaders, folder)
            plot_reconstructions(model, loaders.val_set, folder)
            plot_curves(folder, loaders.val_set, scores)
            print(f"look at {os.path.relpath(folder)}: reconstructions.png, curves.png")


def logged(trainer: L.Trainer, is_train: bool) -> dict[str, float]:
    """What the module has logged: these names belong to a step, others to an epoch."""
    metrics = {}
    for name, value in trainer.callback_metrics.items():
        if name.startswith(("train_", "grad_norm")) == is_train:
            metrics[name] = value.item()
    return metrics
