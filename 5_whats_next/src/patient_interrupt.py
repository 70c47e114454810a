"""A signal sets a flag at once, and ends a wait for data."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from src.interrupt import GracefulInterrupt

ARRIVES = 1.0  # seconds; a batch that is on its way is not torn


class WaitEnded(BaseException):
    """The wait for a batch has ended without one."""


class PatientInterrupt(GracefulInterrupt):
    """The flag of ``GracefulInterrupt``; also ends a wait for data, which loses nothing.

    Python runs a handler when its main thread comes back to Python. A rank that waits in a
    collective for another one does not come back, so the flag would never be set there. Therefore
    a thread sets it, too: C code writes each signal's number to a pipe as soon as it arrives
    (https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd).
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting, self.since = False, 0.0
        self.pipe = -1  # closed

    def __enter__(self) -> "PatientInterrupt":
        super().__enter__()
        self.previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self.end_wait)
        reader, self.pipe = os.pipe()
        os.set_blocking(self.pipe, False)
        threading.Thread(target=self.read, args=[reader], name="signals", daemon=True).start()
        self.other_pipe = signal.set_wakeup_fd(self.pipe, warn_on_full_buffer=False)
        return self

    def __exit__(self, *exception: object) -> None:
        """May be called twice: at the end of the training, and for an error after it."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self.pipe != -1:
            signal.set_wakeup_fd(self.other_pipe)
            os.close(self.pipe)  # ends the thread
            self.pipe = -1  # the number may belong to another file soon
        super().__exit__(*exception)

    def read(self, pipe: int) -> None:
        with open(pipe, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] in (signal.SIGINT, signal.SIGTERM):
                    self.note(number[0])

    def note(self, number: int) -> None:
        """Set the flag, in whichever thread; ``since`` first, because others read it then."""
        if not self.signal_number:
            self.since = time.monotonic()
        self.signal_number = number

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.note(number)
        super().handle(number, frame)
        if self.is_waiting:
            signal.setitimer(signal.ITIMER_REAL, ARRIVES)

    def end_wait(self, number: int, frame: FrameType | None) -> None:
        if self.is_waiting:
            self.is_waiting = False
            raise WaitEnded

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A signal inside of the block raises WaitEnded there, and so does one before it."""
        if self.signal_number:
            raise WaitEnded
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False


# A forked worker has the pipe, too, and is not the one whose signals count.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
INTERRUPT = PatientInterrupt()  # of this process; the training loader looks at it, too
