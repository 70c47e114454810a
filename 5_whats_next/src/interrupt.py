"""Ctrl-C that loses nothing."""

import signal
from types import FrameType


class GracefulInterrupt:
    """Turn the first Ctrl-C or SIGTERM into a flag that the training loop reads between two steps.

    A ``KeyboardInterrupt`` may arrive in the middle of ``optimizer.step()``, when half of the
    weights are new. With a flag the step is finished, a checkpoint written, and then the run ends.
    A second Ctrl-C ends it at once. A second SIGTERM does not: ``uv run`` passes on its own, so
    where SLURM or a container sends one to all processes, this one gets two.
    """

    def __init__(self) -> None:
        self.signal_number = 0

    def __enter__(self) -> "GracefulInterrupt":
        self.previous = {
            number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, self.previous[signal.SIGINT])
        self.signal_number = number

    def __bool__(self) -> bool:
        return self.signal_number != 0
