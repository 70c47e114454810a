"""Ctrl-C and SIGTERM: a program ends at once, a training after the step that it is in."""

import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_at_signals() -> None:
    """From now on both signals end the program, with exit code 130 or 143."""
    for number in SIGNALS:
        signal.signal(number, end_program)


def end_program(number: int, frame: object) -> None:
    """Exit as a shell reports it: 128 and the signal's number."""
    # An exception, so that what is open gets closed: by default SIGTERM ends Python on the spot.
    sys.exit(128 + number)


class StopRequest:
    """The signal that has arrived, for a training to look at between two steps.

    An exception could come in the middle of optimizer.step(), when half of the weights are new.
    With a number to look at, the step is finished and saved, and then the run ends.
    """

    def __init__(self) -> None:
        self.number = 0  # until a signal arrives
        self.handlers_before = {n: signal.signal(n, self.receive) for n in SIGNALS}

    def receive(self, number: int, frame: object) -> None:
        """Remember the first signal; a second Ctrl-C ends the program at once."""
        self.number = self.number or number
        # A second SIGTERM does not: `uv run` and launchers hand on the one that they get, so where
        # a cluster signals all processes of a job, this one gets several.
        if number == signal.SIGINT:
            signal.signal(number, end_program)

    def close(self) -> None:
        """From now on signals do again what they did before, unless the program is ending."""
        if not self.number:
            for number, handler in self.handlers_before.items():
                signal.signal(number, handler)
