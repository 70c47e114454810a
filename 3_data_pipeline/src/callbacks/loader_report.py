"""How long a training waits for its batches: a line after each epoch, for any loader."""

import time

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback


class LoaderReport(Callback):
    """Says how long the slowest rank has waited for its batches.

    Place it behind other callbacks: what they do after a batch would count as waiting. On a GPU,
    the steps run behind Python, so some of the waiting costs nothing; chapter 4 measures there.
    """

    # Lightning also validates without a training.
    start = 0.0
    asked = 0.0

    def on_train_start(self, *_: object) -> None:
        """Start the clock also where a run goes on inside an epoch."""
        self.on_train_epoch_start()

    def on_train_epoch_start(self, *_: object) -> None:
        """The first batch is asked for after this."""
        self.start = time.perf_counter()
        self.asked = self.start
        self.waited = 0.0
        self.first = 0.0

    def on_train_batch_start(self, *_: object) -> None:
        """A batch has come."""
        self.waited += time.perf_counter() - self.asked
        self.first = self.first or self.waited

    def on_train_batch_end(self, *_: object) -> None:
        """The next batch is asked for after this."""
        self.asked = time.perf_counter()

    def on_validation_end(self, *_: object) -> None:
        """Leave out the time since the last batch; training waits for the next one after this."""
        now = time.perf_counter()
        self.start += now - self.asked
        self.asked = now

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Say what this epoch has waited for."""
        numbers = [self.first, self.waited, self.asked - self.start]
        # One slow rank slows all: the others would wait for it, and not for their batches.
        slowest = trainer.strategy.reduce(
            torch.tensor(numbers, device=module.device), reduce_op="max"
        )
        first, waited, seconds = slowest.tolist()
        if trainer.is_global_zero:
            print(
                f"loader    first batch {first:.2f} s, waited {waited:.1f} of {seconds:.1f} s",
                flush=True,
            )
