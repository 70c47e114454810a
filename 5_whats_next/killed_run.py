"""lightning_train.py, killed from the inside, for kill_campaign.py.

  KILL_AT=step:7 python killed_run.py [settings of lightning_train.py]

KILL_AT is MOMENT:STEP. SIGKILL then ends the whole process group: all ranks, all workers. It waits
until two uploads have arrived in the cloud, if two were begun: what is not there cannot be tried.

  step     in the middle of a step, when STEP steps are done
  validation  in the first validation after STEP
  save     while the checkpoint of STEP is being written: it is whole, and has no name yet
  upload   while that checkpoint is uploaded: the object is there, the list does not name it yet
  full     the disk is full from STEP on (the system refuses to write large files)
"""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from src import checkpoint_files
from src.checkpoint_files import Entry
from src.cloud_run import CloudRun
from src.model.lightning_module import AutoencoderModule
from src.uploader import Uploader

VERSIONS, PATIENCE = 2, 20.0  # in the cloud before a kill, and seconds to wait for them


def kill_all() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


class Arrivals:
    """What the training has offered to the cloud, and what the cloud has of it."""

    def __init__(self) -> None:
        self.offered = self.arrived = 0
        self.changed = threading.Condition()
        offer, save = Uploader.offer, CloudRun.save

        def count_offer(*arguments: Any) -> None:
            offer(*arguments)
            self.offered += 1

        def count_save(*arguments: Any) -> Any:
            result = save(*arguments)
            with self.changed:
                self.arrived += 1
                self.changed.notify_all()
            return result

        setattr(Uploader, "offer", count_offer)  # noqa: B010  a type checker would object
        setattr(CloudRun, "save", count_save)  # noqa: B010

    def kill(self) -> None:
        """Only rank 0 uploads, so it is the one that waits and kills."""
        if os.environ.get("LOCAL_RANK", "0") == "0":
            with self.changed:
                self.changed.wait_for(lambda: self.arrived >= min(VERSIONS, self.offered), PATIENCE)
            kill_all()


def before(owner: Any, name: str, is_now: Callable[..., bool], what: Callable[[], None]) -> None:
    """Do something before a function is called, if its arguments say that it is time."""
    original = getattr(owner, name)

    def call(*arguments: Any, **settings: Any) -> Any:
        if is_now(*arguments):
            what()
        return original(*arguments, **settings)

    setattr(owner, name, call)


def fill_disk() -> None:
    """Let the system refuse to write more than 50 kB to a file, as a full disk would."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))


def prepare(moment: str, step: int) -> None:
    """Put the end into the functions where it shall come."""
    arrivals = Arrivals()

    def is_there(module: AutoencoderModule, *_: object) -> bool:
        return module.global_step == step

    if moment == "step":
        before(AutoencoderModule, "training_step", is_there, arrivals.kill)
    elif moment == "validation":

        def is_validated(module: AutoencoderModule, *_: object) -> bool:
            return module.global_step >= step and not module.trainer.sanity_checking

        before(AutoencoderModule, "validation_step", is_validated, arrivals.kill)
    elif moment == "full":
        before(AutoencoderModule, "training_step", is_there, fill_disk)
    elif moment == "save":
        is_now = lambda folder, entry: entry.step == step  # noqa: E731
        before(checkpoint_files, "add_to_manifest", is_now, arrivals.kill)
    elif moment == "upload":
        uploading: list[int] = []

        def remember(run: CloudRun, path: object, entry: Entry, *_: object) -> bool:
            uploading.append(entry.step)
            return False

        # The newest wins: the very step may have given way to a later one.
        def is_late(*_: object) -> bool:
            return bool(arrivals.arrived and uploading) and uploading[-1] >= step

        before(CloudRun, "save", remember, kill_all)
        before(CloudRun, "check_owner", is_late, kill_all)
    else:
        sys.exit(
            f"error: KILL_AT: {moment} is unknown; allowed: step, validation, save, upload, full"
        )


if __name__ == "__main__":
    import lightning_train
    from src.lightning_errors import one_line_errors
    from src.preemption import leave

    moment, _, number = os.environ.get("KILL_AT", "").partition(":")
    if moment:
        prepare(moment, int(number))
    with one_line_errors():
        leave(lightning_train.main())
