"""How a program ends early: with one line for what a user can mend."""

import multiprocessing
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from src.run.signals import exit_at_signals


class UserError(Exception):
    """Something is wrong with the input; shown as one line, without a traceback."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line on stderr and exit code 1 for an error that a user can mend.

    Any other error is a traceback. Ctrl-C and SIGTERM end the program with 130 or 143.
    """
    exit_at_signals()
    try:
        yield
    except (UserError, OSError, RuntimeError) as error:
        # OSError: a file that is missing, a disk that is full.
        # RuntimeError: a loader's worker was killed, such as for the memory that it took.
        is_worker = str(error).startswith("DataLoader worker (pid")
        if isinstance(error, RuntimeError) and not is_worker:
            raise
        # From a loader's worker comes a traceback; its last line is the error's.
        message = re.sub(r"(?s)^Caught .*\n[\w.]+: ", "", str(error).strip())
        one_line = " ".join(message.split())
        sys.exit(f"error: {one_line}")
    finally:
        # After an error the loader is still in use, so nobody has told its workers to end. At exit
        # Python would send them SIGTERM, which they ignore (worker_init_fn), and wait for ever. So
        # kill them. SIG_DFL first: PyTorch's handler would turn a killed worker into a traceback.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for worker in multiprocessing.active_children():
            worker.kill()
