"""Uploads checkpoints in the background; the newest one wins, and the training never waits."""

import os
import shutil
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from src.checkpoint_files import Entry, identify, read_manifest
from src.cloud_run import CloudRun, Copy, SupersededError
from src.errors import UserError

MOST = 4  # checkpoints that wait
PAUSE = 2.0  # seconds until a checkpoint that could not be uploaded is tried once more


@dataclass(frozen=True)
class Waiting:
    """A checkpoint that shall be uploaded: a second name of the file, which nobody overwrites."""

    snapshot: Path
    name: str
    step: int
    written: tuple[Entry, ...]  # what the manifest knows; empty without one


class Uploader:
    """A thread that uploads what it is offered.

    The queue holds one checkpoint of each name. A newer one takes the place of one that still
    waits: a slow network gets fewer checkpoints, not older ones.

    Args:
        run: the copy in the cloud.
        beside: the run's local folder.
        deadline: seconds after which an upload has failed; then the newest is tried.
    """

    def __init__(self, run: CloudRun, beside: Path, deadline: float) -> None:
        self.run, self.beside, self.deadline = run, beside, deadline
        self.waiting: OrderedDict[str, Waiting] = OrderedDict()
        self.changed = threading.Condition()
        self.busy: Waiting | None = None
        self.ended, self.number = False, 0
        self.done: list[Copy] = []  # what is in the cloud, in the order of uploading
        self.superseded = self.failures = 0
        self.problem = ""  # why the last attempt failed
        self.thread = threading.Thread(target=self.work, name="uploader", daemon=True)
        self.thread.start()

    def offer(self, path: Path, step: int) -> None:
        """Put a checkpoint in the queue; it may be replaced right afterwards.

        Args:
            path: the file.
            step: optimiser steps done, if the manifest does not know it.
        """
        try:
            self.take(path, step)
        except OSError as error:  # a full disk, on which there are no links
            self.problem = str(error)

    def take(self, path: Path, step: int) -> None:
        self.number += 1
        snapshots = path.parent / ".uploads"
        snapshots.mkdir(exist_ok=True)
        snapshot = snapshots / f"{os.getpid()}-{self.number}-{path.name}"
        try:
            os.link(path, snapshot)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, snapshot)
        with self.changed:
            if older := self.waiting.pop(path.name, None):
                older.snapshot.unlink(missing_ok=True)
                self.superseded += 1
            written = tuple(read_manifest(path.parent))
            self.waiting[path.name] = Waiting(snapshot, path.name, step, written)
            while len(self.waiting) > MOST:  # names with a step or an epoch in them
                self.waiting.popitem(last=False)[1].snapshot.unlink(missing_ok=True)
                self.superseded += 1
            self.changed.notify_all()

    def work(self) -> None:
        """What the thread does."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.ended)
                if not self.waiting:
                    return
                _, self.busy = self.waiting.popitem(last=False)
            succeeded = self.upload(self.busy)
            with self.changed:
                again = not succeeded and not self.ended and self.busy.name not in self.waiting
                if again:
                    self.waiting[self.busy.name] = self.busy
                    self.waiting.move_to_end(self.busy.name, last=False)
                else:
                    self.busy.snapshot.unlink(missing_ok=True)
                self.busy = None
                self.changed.notify_all()
                if again:  # until something newer comes, or the end
                    self.changed.wait(PAUSE)

    def upload(self, item: Waiting) -> bool:
        """Whether it is in the cloud now. Nothing that happens here may end the training."""
        try:
            entry = identify(item.snapshot, item.name, item.step, list(item.written))
        except (UserError, OSError) as error:  # trying again would not mend it
            self.problem = f"{error}, and is not uploaded"
            return True
        try:
            self.done.append(self.run.save(item.snapshot, entry, self.beside, self.deadline))
            self.problem = ""
            return True
        except SupersededError as error:
            self.ended = True
            self.problem = str(error)
        except Exception as error:  # a fault that nobody has thought of included
            self.problem = str(error) if isinstance(error, UserError) else repr(error)
        self.failures += 1
        return False

    def flush(self, seconds: float) -> bool:
        """Wait until all that was offered is in the cloud; whether it is."""
        deadline = time.monotonic() + seconds
        with self.changed:
            self.changed.wait_for(
                lambda: (not self.waiting and self.busy is None) or self.ended,
                max(0.0, deadline - time.monotonic()),
            )
            return not self.waiting and self.busy is None and not self.problem

    def close(self) -> None:
        """End the thread; what it is uploading is given up."""
        self.run.folder.cancelled = True
        with self.changed:
            self.ended = True
            for item in self.waiting.values():
                item.snapshot.unlink(missing_ok=True)
            self.waiting.clear()
            self.changed.notify_all()
        self.thread.join(1.0)
        with suppress(OSError):
            (self.beside / "checkpoints" / ".uploads").rmdir()

    def newest(self, name: str) -> Copy | None:
        """The newest checkpoint of a name that is in the cloud."""
        found = [copy for copy in self.done if copy.name == name]
        return max(found, key=lambda copy: copy.step, default=None)
