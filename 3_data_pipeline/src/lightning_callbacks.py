"""What accompanies the training: metrics and pictures, Ctrl-C, and checkpoints that are whole."""

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse.typing import NonNegativeInt
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only

from src.checkpoint import read_checkpoint, save_atomic
from src.errors import GracefulInterrupt
from src.model.lightning_module import AutoencoderModule
from src.report import draw, report
from src.tracking import Tracker, WandbMode


class Report(Callback):
    """metrics.csv and wandb for any module; pictures and the final scores for our own.

    Args:
        wandb: where metrics go; null follows the variable WANDB_MODE, and else stays offline.
        picture_every_n_epochs: epochs between two pictures; 0 means at the end only.
    """

    def __init__(
        self, wandb: WandbMode | None = None, picture_every_n_epochs: NonNegativeInt = 1
    ) -> None:
        self.wandb, self.picture_every, self.run_id = wandb, picture_every_n_epochs, ""

    # Lightning puts this into each checkpoint, so that wandb continues the run.
    def state_dict(self) -> dict[str, str]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.run_id = state["run_id"]

    # Rank 0 alone writes: the others would write the same files.
    @rank_zero_only
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        folder, step = Path(trainer.default_root_dir), trainer.global_step
        # Look at these: a run on the wrong hardware works as well, only slower.
        strategy = f"{type(trainer.strategy).__name__} on {module.device}"
        print(
            f"devices   {trainer.num_devices} on each of {trainer.num_nodes} nodes; {strategy}"
        )
        print(
            f"training  steps {step} to {trainer.max_epochs * trainer.num_training_batches}"
        )
        print(f"output    {os.path.relpath(folder)}", flush=True)
        self.tracker = Tracker(folder, self.wandb, step, self.run_id)
        self.run_id = self.tracker.run.id
        self.on_train_epoch_start(
            trainer
        )  # Lightning skips it where a run goes on inside an epoch

    def on_train_epoch_start(self, trainer: L.Trainer, *_: object) -> None:
        self.start, self.first_step = time.perf_counter(), trainer.global_step

    def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
        self.lr = float(
            trainer.optimizers[0].param_groups[0]["lr"]
        )  # before the step changes it

    @rank_zero_only
    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        step, seconds = trainer.global_step, time.perf_counter() - self.start
        if step % trainer.log_every_n_steps == 0:
            # The samples of all devices; a data module that is not ours may have no batch_size.
            size = getattr(trainer.datamodule, "batch_size", math.nan)
            speed = {"samples_per_second": (step - self.first_step) * size / seconds}
            row = logged(trainer, is_train=True) | {"lr": self.lr} | speed
            self.tracker.log(step, trainer.current_epoch, row)

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        step, epoch, scores = (
            trainer.global_step,
            trainer.current_epoch,
            logged(trainer, False),
        )
        self.tracker.log(step, epoch, scores)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        print(f"epoch {epoch + 1} of {trainer.max_epochs}: {shown}", flush=True)
        every = self.picture_every or trainer.max_epochs
        if isinstance(module, AutoencoderModule) and (epoch + 1) % every == 0:
            draw(
                module.model, trainer.datamodule.val_set, self.tracker, step, scores={}
            )

    # The scores beside the baselines; in the meantime the other ranks wait.
    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero and isinstance(module, AutoencoderModule):
            report(
                module.model,
                trainer.datamodule.val_set,
                self.tracker,
                trainer.global_step,
            )
        trainer.strategy.barrier()


def logged(trainer: L.Trainer, is_train: bool) -> dict[str, float]:
    """What the module has logged: names with train_ belong to a step, others to an epoch."""
    metrics = trainer.callback_metrics.items()
    return {
        name: value.item()
        for name, value in metrics
        if name.startswith("train_") == is_train
    }


class StopAndSave(Callback):
    """Ctrl-C and SIGTERM end the run after the step, with a checkpoint, and so does max_steps.

    Args:
        max_steps: stop after this step, with the schedule of max_epochs; -1 means never.
        checkpoint_every_n_steps: save inside an epoch too; 0 means at its end only.
    """

    # The Trainer's own max_steps saves an unfinished epoch as finished: a resume skips its rest.
    def __init__(
        self, max_steps: int = -1, checkpoint_every_n_steps: NonNegativeInt = 0
    ) -> None:
        self.max_steps, self.every, self.is_stopping = (
            max_steps,
            checkpoint_every_n_steps,
            False,
        )

    def on_train_start(self, *_: object) -> None:
        # Here, after Lightning has set a handler of its own: that one broadcasts inside of the
        # handler, and hangs. https://github.com/Lightning-AI/pytorch-lightning/issues/20806
        self.interrupt = GracefulInterrupt()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, *_: object
    ) -> None:
        step = trainer.global_step
        # The ranks get a signal at different moments, or only one of them does. They ask each other
        # after each step, so that all stop after the same one: none waits for one that has left.
        number = torch.tensor(self.interrupt.signal_number, device=module.device)
        self.signal_number = int(trainer.strategy.reduce(number, reduce_op="max"))
        self.is_stopping = self.signal_number > 0 or step == self.max_steps
        # At the end of an epoch the checkpoint comes after the validation, from ModelCheckpoint.
        if step % trainer.num_training_batches == 0:
            return
        if self.is_stopping or (self.every and step % self.every == 0):
            # By all ranks, because it waits for all of them; rank 0 writes.
            path = Path(trainer.default_root_dir, "checkpoints", "last.ckpt")
            trainer.save_checkpoint(path, weights_only=False)
        self.on_train_epoch_start(trainer)  # inside an epoch the run can end at once

    # Ends the process if a stop was asked for. After an epoch's last step this waits for the next
    # epoch's start: validation and checkpoint come in between. Not with trainer.should_stop, which
    # validates first, and ends like a complete training.
    def on_train_epoch_start(self, trainer: L.Trainer, *_: object) -> None:
        if not self.is_stopping:
            return
        if not trainer.is_global_zero:
            sys.exit(
                0
            )  # Lightning's launcher kills rank 0 if another one seems to have failed
        folder = os.path.relpath(trainer.default_root_dir)
        print(f"stopped after step {trainer.global_step}; go on with --resume {folder}")
        sys.exit(128 + self.signal_number if self.signal_number else 0)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints as in chapter 0: whole or not there, and one line for those that are broken."""

    # Lightning stages in TMPDIR and moves: where that is another filesystem, a crash while moving
    # destroys the last checkpoint. https://github.com/Lightning-AI/pytorch-lightning/issues/21253
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, *_: Any, **__: Any
    ) -> None:
        save_atomic(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read_checkpoint(Path(path))
