"""Ctrl-C and SIGTERM: a program ends at once, a training after the step that it is in."""

import os
import signal
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_at_signals() -> None:
    """From now on both signals end the program at once, with exit code 130 or 143."""
    for number in SIGNALS:
        signal.signal(number, exit_at_once)


def exit_at_once(number: int, frame: object) -> None:
    """End without waiting for threads or workers, with the exit code that a shell reports."""
    os._exit(128 + number)


class StopRequest:
    """The signal that has arrived, for a training to look at between two steps.

    An exception could come in the middle of optimizer.step(), when half of the weights are new.
    With a number to look at, the step is finished and saved, and then the run ends.
    """

    def __init__(self) -> None:
        self.number = 0  # until a signal arrives
        self.time = 0.0
        for number in SIGNALS:
            signal.signal(number, self.receive)

    def receive(self, number: int, frame: object) -> None:
        """Remember the first signal; a second Ctrl-C ends the program at once."""
        # A second SIGTERM does not: `uv run` and launchers hand on the one that they get, so where
        # a cluster signals all processes of a job, this one gets several.
        if self.number and number == signal.SIGINT:
            exit_at_once(number, frame)
        self.number = self.number or number
        self.time = self.time or time.monotonic()

    def seconds_since_signal(self) -> float:
        """How long ago it came; 0 if none has."""
        return time.monotonic() - self.time if self.time else 0.0
