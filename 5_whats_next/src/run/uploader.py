"""A thread that uploads checkpoints while the training goes on."""

import threading
import time
from contextlib import suppress
from pathlib import Path

from src.run.checkpoint_files import add_name, saved_step
from src.run.cloud_run import CloudRun, DamagedFileError, TakenOverError

PAUSE = 5.0  # seconds between two attempts of an upload, each with its own retries
FIRST_NOTICE, LONGEST_NOTICE = 60.0, 3600.0  # seconds between two lines about a failure


class Uploader(threading.Thread):
    """Uploads the newest file of each name; one that is older and still waits is left out.

    What goes wrong is printed, and tried again if that can help: the training does not stop for it.
    """

    def __init__(self, run: CloudRun) -> None:
        super().__init__(daemon=True)
        self.cloud = run
        self.changed = threading.Condition()  # guards what both threads write
        self.waiting: dict[str, tuple[Path, int]] = {}  # file and step, by name
        self.uploaded: dict[str, int] = {}  # step of the newest uploaded file, by name
        # Why a file is not uploaded, where another attempt cannot help; by name.
        self.refused: dict[str, Exception] = {}
        self.is_busy = False
        self.is_closed = False
        self.error: Exception | None = None  # of the last attempt
        self.failing_since = 0.0  # 0 while uploads work
        self.next_notice = 0.0

    def enqueue(self, path: Path) -> None:
        """Upload this file as it is now. Raises OSError if it is gone, or if there is no room."""
        # Here, and not in the thread: if Python ends while a thread is inside of torch, it aborts.
        try:
            step = saved_step(path)
        except OSError:
            raise
        except Exception as error:  # a damaged file can fail anywhere
            self.refuse(path.name, error)
            return
        snapshot = path.parent / ".uploads" / f"{time.time_ns()}-{path.name}"
        try:
            snapshot.parent.mkdir(exist_ok=True)
            add_name(path, snapshot)
        except OSError as error:
            with self.changed:
                self.notify(error)
            raise
        with self.changed:
            if path.name in self.waiting:
                older, _ = self.waiting.pop(path.name)
                older.unlink(missing_ok=True)
            self.waiting[path.name] = (snapshot, step)
            self.changed.notify_all()

    def run(self) -> None:
        """Upload what waits, until the end of the training."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.is_closed)
                if self.is_closed:
                    return
                # The oldest: otherwise a frequent last.ckpt would keep best.ckpt waiting.
                name = next(iter(self.waiting))
                snapshot, step = self.waiting.pop(name)
                self.is_busy = True
            error = self.attempt(snapshot, name, step)
            with self.changed:
                self.is_busy = False
                self.error = error
                self.notify(error)
                if error and name not in self.waiting:
                    self.waiting[name] = (snapshot, step)
                else:  # uploaded or refused, or a newer one waits
                    snapshot.unlink(missing_ok=True)
                self.changed.notify_all()
                if self.is_taken_over():
                    return
                if error:  # a pause, which a newer file ends
                    self.changed.wait(PAUSE)

    def attempt(self, snapshot: Path, name: str, step: int) -> Exception | None:
        """Upload one file. Returns why it has to be tried again."""
        try:
            self.cloud.upload(snapshot, name, step)
        except DamagedFileError as error:
            self.refuse(name, error)
        except Exception as error:
            return error
        else:
            self.uploaded[name] = step
            self.refused.pop(name, None)
        return None

    def refuse(self, name: str, error: Exception) -> None:
        """Leave out a file that no attempt can upload."""
        self.refused[name] = error
        say(f"{name} is not uploaded: {error}")

    def notify(self, error: Exception | None) -> None:
        """Say when uploads begin to fail, again at growing intervals, and when they work again."""
        now = time.monotonic()
        if error is None:
            if self.failing_since:
                say("uploads work again")
            self.failing_since = 0.0
            self.next_notice = 0.0
        elif now >= self.next_notice:
            self.failing_since = self.failing_since or now
            seconds = now - self.failing_since
            since = f" for {seconds:.0f} s" if seconds else ""
            say(f"uploads fail{since}: {error}")
            # As long again as they have failed already.
            wait = min(max(seconds, FIRST_NOTICE), LONGEST_NOTICE)
            self.next_notice = now + wait

    def is_hopeless(self) -> bool:
        """Whether trying again cannot help: no right to write, or another process has the run."""
        cause = self.error and self.error.__cause__
        return isinstance(cause, PermissionError) or self.is_taken_over()

    def is_taken_over(self) -> bool:
        """Whether another process goes on with the run."""
        return isinstance(self.error, TakenOverError)

    def flush(self, seconds: float) -> None:
        """Return when nothing waits any more, when it is hopeless, or after so many seconds."""

        def is_over() -> bool:
            is_done = not self.waiting and not self.is_busy
            return is_done or self.is_hopeless()

        with self.changed:
            if self.is_taken_over():
                return
            self.error = None  # another attempt, also after an error
            self.changed.notify_all()
            if not is_over():
                say(f"last uploads, {seconds:.0f} s at most")
            self.changed.wait_for(is_over, seconds)

    def close(self) -> None:
        """End the thread. A request that does not answer is left to its time limit."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        self.join(timeout=1)


def say(line: str) -> None:
    """Print a line about uploads, unless the log is on a full disk."""
    with suppress(OSError):
        print(f"cloud     {line}", flush=True)
