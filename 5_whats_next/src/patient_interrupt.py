"""A signal sets a flag, and ends a wait for data."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from src.interrupt import GracefulInterrupt

ARRIVES = 1.0  # seconds; a batch that is on its way is not torn


class WaitEnded(BaseException):
    """The wait for a batch has ended without one."""


class PatientInterrupt(GracefulInterrupt):
    """The flag of ``GracefulInterrupt``; also ends a wait for data, which loses nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting, self.since = False, 0.0

    def __enter__(self) -> "PatientInterrupt":
        super().__enter__()
        self.previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self.end_wait)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().__exit__(*exception)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self.signal_number:
            self.since = time.monotonic()
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


INTERRUPT = PatientInterrupt()  # of this process; the training loader looks at it, too
