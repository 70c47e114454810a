"""SIGTERM and Ctrl-C: a checkpoint and exit code 143, whichever process gets the signal, and when.

Lightning's own handler broadcasts from inside the handler, and hangs if the ranks are not at the
same place (https://github.com/Lightning-AI/pytorch-lightning/issues/20806). Here

  the handler           sets a flag; while the process waits for a batch, it also ends the wait
  a thread of each rank passes the signal on to the other ranks, through the rendezvous' store
  before each step      the ranks compare their flags, so that all of them stop at the same step
  a watchdog            ends a process that gets nowhere: storage or a rank that does not answer
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist

from src.checkpoint_files import newest_intact
from src.errors import UserError
from src.lightning_callbacks import StopAndSave, Stopped, module_of
from src.lightning_ranks import SharedError, is_rank_zero
from src.patient_interrupt import INTERRUPT

POLL = 0.5  # seconds between two looks whether another rank has got a signal


class Preemption(StopAndSave):
    """Ends a run after a signal, with a checkpoint, at the same step on all ranks.

    Args:
        grace: seconds from the signal until the next step begins, at most; after that the process
            ends without a new checkpoint, and the last one counts. The same for a validation,
            which is finished if it takes no longer.
    """

    def __init__(self, grace: float = 9.0) -> None:
        super().__init__()
        if grace <= 0:
            raise UserError(f"grace: {grace} is not positive; allowed: seconds above 0")
        self.grace, self.interrupt = grace, INTERRUPT
        self.safe = threading.Event()  # set while the ranks have met after a signal
        self.over = threading.Event()
        self.flags: Any = None  # a group for the flags alone: on the CPU, and beside the model's

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take the signals before Lightning does: a job may be stopped before its first step."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            connector = trainer._signal_connector
            connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
            INTERRUPT.signal_number = 0
            INTERRUPT.__enter__()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start to listen to the other ranks, which have to go on from the same step."""
        if dist.is_initialized() and dist.get_world_size() > 1:
            self.flags = dist.new_group(backend="gloo")
            steps: list[int] = [0] * dist.get_world_size()
            dist.all_gather_object(steps, trainer.global_step, group=self.flags)
            if len(set(steps)) > 1:
                raise SharedError(f"the ranks go on from different steps: {steps}")
            self.pass_on()
        self.folder = trainer.log_dir or "."
        self.start_watchdog()

    def pass_on(self) -> None:
        """Tell the other ranks of a signal, and listen to what they say, in a thread."""
        store: Any = dist.distributed_c10d._get_default_store().clone()
        key = "preempted"

        def listen() -> None:
            told = False
            while not self.over.wait(POLL):
                with suppress(RuntimeError, dist.DistError):
                    if INTERRUPT.signal_number and not told:
                        store.set(key, str(INTERRUPT.signal_number))
                        told = True
                    elif not told and store.check([key]):
                        told = True
                        os.kill(os.getpid(), int(store.get(key)))

        threading.Thread(target=listen, name="preemption", daemon=True).start()

    def start_watchdog(self) -> None:
        """End this process if it reaches no safe point in time."""

        def watch() -> None:
            # Started beforehand: a signal handler must not wait for the locks of a new thread.
            while not self.over.wait(POLL) and not INTERRUPT.signal_number:
                pass
            if not self.safe.wait(self.grace) and not self.over.is_set():
                number = INTERRUPT.signal_number
                if is_rank_zero():
                    print(
                        f"stopped by signal {number}: no step began within {self.grace:.0f} s; the "
                        f"last checkpoint counts; continue with --resume {self.folder}",
                        flush=True,
                    )
                leave_now(128 + number)

        threading.Thread(target=watch, name="watchdog", daemon=True).start()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object
    ) -> None:
        """The safe point: all ranks have a batch, or have been interrupted in waiting for it."""
        if not self.is_time(trainer):
            return
        self.safe.set()
        if trainer.global_step % module_of(pl_module).data.steps_per_epoch:
            self.save(trainer)
        self.stop(trainer)

    def save(self, trainer: L.Trainer) -> None:
        """Write last.ckpt, as if the last step had just ended."""
        # Lightning counts the logged steps after the hooks of a step, and where it goes on from
        # a checkpoint, it takes for granted that the checkpoint was written in one of them.
        loop = trainer.fit_loop.epoch_loop
        loop._batches_that_stepped -= 1
        try:
            trainer.save_checkpoint(Path(trainer.log_dir or ".") / "checkpoints" / "last.ckpt")
        finally:
            loop._batches_that_stepped += 1

    def stop(self, trainer: L.Trainer) -> None:
        if not INTERRUPT and trainer.global_step != self.max_steps:
            INTERRUPT.note(signal.SIGTERM)  # another rank has got a signal, and this one not yet
        raise Stopped(trainer.global_step, trainer.log_dir or ".", INTERRUPT.signal_number)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Here and not before the next step: a run that goes on from max_steps goes past it."""
        self.stopping = trainer.global_step == self.max_steps

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Nothing either."""

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any
    ) -> None:
        """A validation is finished unless it takes too long."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        late = bool(INTERRUPT) and time.monotonic() - INTERRUPT.since > 0.8 * self.grace
        if self.any_rank(late):
            self.safe.set()
            if not INTERRUPT:
                INTERRUPT.note(signal.SIGTERM)
            step = newest_intact(Path(self.folder) / "checkpoints")[1]
            raise Stopped(step, self.folder, INTERRUPT.signal_number)

    def is_time(self, trainer: L.Trainer) -> bool:
        return self.any_rank(bool(INTERRUPT) or self.stopping)

    def any_rank(self, told: bool) -> bool:
        """Whether any rank says so; all ranks have to ask together."""
        if self.flags is None:
            return told
        flag = torch.tensor(int(told))
        dist.all_reduce(flag, group=self.flags)
        return bool(flag)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The training is complete; a signal that came meanwhile still ends the run."""
        told = self.any_rank(bool(INTERRUPT))
        self.restore()
        if told:
            self.stop(trainer)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """A run that was complete already ends here, and without ``on_train_end``.

        A signal that came meanwhile is dropped: there is nothing to save.
        """
        self.restore()

    def restore(self) -> None:
        self.over.set()
        self.safe.set()
        super().restore()


def leave_now(code: int) -> None:
    """End this process without waiting for anything, such as threads that wait for a network."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave(code: int, patience: float = 5.0) -> None:
    """End this process with an exit code, as sys.exit does, but within ``patience`` seconds.

    After a signal nobody waits for a reader that is still asking a dead storage for a batch.
    """
    if code > 128 or INTERRUPT.signal_number:  # ranks other than 0 end with code 0
        timer = threading.Timer(patience, leave_now, [code])
        timer.daemon = True
        timer.start()
    sys.exit(code)
