"""A signal sets a flag, and ends a wait for data."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from src.interrupt import GracefulInterrupt


class WaitEnded(BaseException):
    """The wait for a batch has ended without one."""


class PatientInterrupt(GracefulInterrupt):
    """The flag of ``GracefulInterrupt``; also ends a wait for data, which loses nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting, self.since = False, 0.0
        self.heard: list[Callable[[], None]] = []  # called once, at the first signal

    def handle(self, number: int, frame: FrameType | None) -> None:
        first = not self.signal_number
        super().handle(number, frame)
        if first:
            self.since = time.monotonic()
            for listener in self.heard:
                listener()
        if self.is_waiting:
            self.is_waiting = False
            raise WaitEnded

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A signal inside of the block raises WaitEnded there, also one that came before."""
        self.is_waiting = True
        try:
            if self.signal_number:
                raise WaitEnded
            yield
        finally:
            self.is_waiting = False


INTERRUPT = PatientInterrupt()  # of this process; the training loader looks at it, too
