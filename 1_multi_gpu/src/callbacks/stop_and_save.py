"""Checkpoints, and a training that ends after the step that it is in."""

import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback

from src.run.checkpoint import check_finite
from src.run.stop import StopRequest, exit_at_signals


class StopAndSave(Callback):
    """Writes last.ckpt; ends a training after the step that it is in, on all ranks.

    A signal may come to one rank or to all. Before the first step and after the last one there is
    nothing to save, and it ends the program at once (``src/run/stop.py``).

    Args:
        max_steps: stop after this step, with the schedule of max_epochs; -1 means never. The
            Trainer's own max_steps saves an unfinished epoch as finished: a resume skips its rest.
        checkpoint_every_n_steps: save inside an epoch too; 0 means at its end only.
    """

    def __init__(self, max_steps: int = -1, checkpoint_every_n_steps: int = 0) -> None:
        self.max_steps = max_steps
        self.every = checkpoint_every_n_steps

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        """Keep the signal handlers that the program has set."""
        # Lightning's own one broadcasts inside of the handler, and hangs if one rank alone gets a
        # signal. https://github.com/Lightning-AI/pytorch-lightning/issues/20806
        trainer._signal_connector.register_signal_handlers = lambda: None
        # And before each step it asks all ranks, which waits for the GPU.
        # https://github.com/Lightning-AI/pytorch-lightning/issues/21487
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        """From here on a signal waits for the end of the step."""
        # Over the CPUs: NCCL would wait for the GPU in each step.
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self.request = StopRequest()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Save and end inside an epoch."""
        step = trainer.global_step
        if step % trainer.log_every_n_steps == 0:
            # With 16-mixed the scaler leaves out a step whose gradients are not finite: then the
            # weights stay as they are, for ever.
            check_finite(module, step, outputs.get("loss", torch.tensor(0)))
        # After an epoch's last step come the validation and on_train_epoch_end.
        if step % trainer.num_training_batches:
            is_due = self.every > 0 and step % self.every == 0
            self.save_or_stop(trainer, module, is_due)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Save, and end between two epochs."""
        # best.ckpt is there already: a crash in between repeats the last steps, and loses nothing.
        self.save_or_stop(trainer, module, is_due=True)

    def on_train_end(self, *_: Any) -> None:
        """All is saved: from here on a signal ends the program at once."""
        exit_at_signals()

    def save_or_stop(
        self, trainer: L.Trainer, module: L.LightningModule, is_due: bool
    ) -> None:
        """Write last.ckpt if it is due, or if the run is to end after this step."""
        # The ranks get a signal at different moments, or only one of them does. So they ask each
        # other after each step, and all stop after the same one: none waits for one that has left.
        number = torch.tensor(self.request.number)
        if self.group:
            dist.all_reduce(number, dist.ReduceOp.MAX, self.group)
        signal_number = int(number)

        step = trainer.global_step
        is_stopping = signal_number > 0 or step == self.max_steps
        if is_due or is_stopping:
            check_finite(module, step)
            # By all ranks, because it waits for all of them; rank 0 writes.
            trainer.save_checkpoint(
                Path(trainer.default_root_dir, "checkpoints/last.ckpt"),
                weights_only=False,
            )
        if is_stopping:
            # Not with trainer.should_stop, which validates first, and ends like a whole training.
            if trainer.is_global_zero:
                print(
                    f"stopped after step {step}; go on with --resume {trainer.default_root_dir}",
                    flush=True,
                )
            sys.exit(128 + signal_number if signal_number else 0)
