"""The one kind of error that a user can put right."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something is wrong with the input; shown as one line, without a traceback."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line on stderr and code 1 for an error, with 130 for Ctrl-C."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:  # a file that is not there, a disk that is full
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
