"""Ctrl-C, SIGTERM and max_steps end a Lightning training after the step, with a checkpoint."""

import os
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from jsonargparse.typing import NonNegativeInt
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import SaveConfigCallback

from src.run.errors import UserError
from src.run.signals import StopRequest


def switch_off(owner: Any, method: str) -> None:
    """Let a method of Lightning's own do nothing.

    Raises:
        UserError: Lightning has renamed it. Without this check it would act again, unnoticed.
    """
    if not hasattr(owner, method):
        raise UserError(
            f"Lightning {L.__version__} has no {method}: use the locked one"
        )
    setattr(owner, method, lambda: None)


class StopAndSave(Callback):
    """Ends a training after the step that it is in, on all ranks, with a checkpoint.

    A signal may come to one rank or to all. In front of the first step and after the last one there
    is nothing to save, and it ends the program at once (``src/run/signals.py``).

    Args:
        max_steps: stop after this step, with the schedule of max_epochs; -1 means never. The
            Trainer's own max_steps saves an unfinished epoch as finished: a resume skips its rest.
        checkpoint_every_n_steps: save inside an epoch too; 0 means at its end only.
    """

    def __init__(
        self, max_steps: int = -1, checkpoint_every_n_steps: NonNegativeInt = 0
    ) -> None:
        self.max_steps = max_steps
        self.every = checkpoint_every_n_steps
        self.request: Any = None  # a StopRequest while it trains
        self.number = 0  # of the signal
        self.is_stopping = False

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        """Keep the signal handlers that the program has set."""
        # Lightning's own one broadcasts inside of the handler, and hangs if one rank alone gets a
        # signal. During the sanity validation it ends the program with exit code 0.
        # https://github.com/Lightning-AI/pytorch-lightning/issues/20806
        # Its requeueing of SLURM jobs goes as well.
        switch_off(trainer._signal_connector, "register_signal_handlers")

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        """From here on a signal waits for the end of the step."""
        self.request = StopRequest()
        # Lightning's own check for signals between the ranks would wait for the GPU in each step.
        # https://github.com/Lightning-AI/pytorch-lightning/issues/21487
        switch_off(trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor")
        # The ranks ask each other over their CPUs (gloo): NCCL would wait for the GPU, too.
        self.group: Any = (
            dist.new_group(backend="gloo") if dist.is_initialized() else None
        )

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Save and end inside an epoch."""
        self.ask_all_ranks()
        step = trainer.global_step
        self.is_stopping = self.number > 0 or step == self.max_steps
        # After an epoch's last step come the validation and its checkpoint (ModelCheckpoint).
        if step % trainer.num_training_batches == 0:
            return
        if self.is_stopping or (self.every and step % self.every == 0):
            # By all ranks, because it waits for all of them; rank 0 writes.
            path = Path(trainer.default_root_dir, "checkpoints", "last.ckpt")
            trainer.save_checkpoint(path, weights_only=False)
        if self.is_stopping:
            self.stop(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """End between two epochs, with the checkpoint of the first one."""
        self.ask_all_ranks()  # again: a signal may have come during the validation
        if self.is_stopping or self.number:
            self.stop(trainer)

    def on_train_end(self, trainer: L.Trainer, *_: Any) -> None:
        """From here on a signal ends the program at once; one that has come ends it now."""
        self.request.close()
        self.ask_all_ranks()
        if self.number:
            self.stop(trainer)

    def ask_all_ranks(self) -> None:
        """Find out whether one of them has got a signal. All of them have to call this."""
        # The ranks get a signal at different moments, or only one of them does. So they ask each
        # other after each step, and all stop after the same one: none waits for one that has left.
        self.number = self.request.number
        if self.group:
            number = torch.tensor(self.number)
            dist.all_reduce(number, dist.ReduceOp.MAX, self.group)
            self.number = int(number)

    def stop(self, trainer: L.Trainer) -> None:
        """End the program."""
        # Not with trainer.should_stop, which validates first, and ends like a complete training.
        if trainer.is_global_zero:
            folder = os.path.relpath(trainer.default_root_dir)
            advice = f"--resume {folder}"
            if any(isinstance(c, SaveConfigCallback) for c in trainer.callbacks):
                # LightningCLI has no --resume.
                advice = f"fit -c {folder}/config.yaml --ckpt_path {folder}/checkpoints/last.ckpt"
            # A signal may come while rank 0 begins its report, in front of the first step.
            saved = trainer.global_step > 0
            advice = f"go on with {advice}" if saved else "nothing to save"
            print(f"stopped after step {trainer.global_step}; {advice}")
        sys.exit(128 + self.number if self.number else 0)
