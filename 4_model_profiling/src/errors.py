"""How a run ends early: with one line for a known error, or with a saved step at a signal."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something is wrong with the input; shown as one line, without a traceback."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line on stderr and exit code 1 for an error that a user can mend."""
    try:
        yield
    except (
        UserError,
        OSError,
    ) as error:  # OSError: a file that is missing, a disk that is full
        # An error from a loader's worker has the whole traceback in its message, before this name.
        sys.exit(f"error: {' '.join(str(error).rpartition('UserError: ')[2].split())}")
    except KeyboardInterrupt:  # Ctrl-C before the training has begun, or a second one
        sys.exit(128 + signal.SIGINT)
    finally:
        # After an error a loader is still in use, and so its workers do not end by themselves.
        # Python sends them one SIGTERM, which they ignore (worker_init_fn), and waits for ever.
        for worker in multiprocessing.active_children():
            worker.kill()


class GracefulInterrupt:
    """Turns Ctrl-C and SIGTERM into a number that the training looks at between two steps."""

    # KeyboardInterrupt may arrive in the middle of optimizer.step(), when half of the weights are
    # new. With a flag the step is finished and saved, and then the run ends.
    def __init__(self) -> None:
        self.signal_number = 0  # until a signal arrives
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle)

    def handle(self, number: int, frame: object) -> None:
        # A second Ctrl-C ends the run at once. A second SIGTERM does not: `uv run` forwards the one
        # that it gets, so where a cluster signals all processes of a job, this one gets two.
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        self.signal_number = number
