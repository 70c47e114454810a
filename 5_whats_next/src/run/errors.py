"""How a program ends early: with one line for what a user can mend, else with a traceback."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from src.run.stop import exit_at_signals


class UserError(Exception):
    """Something is wrong with the input; shown as one line, without a traceback."""


# What a user's mistake raises. OSError: a file that is missing, a disk that is full.
USER_ERRORS = (UserError, OSError)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with exit code 1 after an error.

    A user's mistake is one line on stderr, any other error a traceback. Ctrl-C and SIGTERM end the
    program with 130 or 143.
    """
    exit_at_signals()
    try:
        yield
    except Exception as error:
        if isinstance(error, USER_ERRORS):
            message = str(error)
            # A loader's worker sends its whole traceback, which ends with the error.
            if message.startswith("Caught"):
                message = message.splitlines()[-1]
            print("error:", " ".join(message.split()), file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # At once, because Python would wait for the loader's workers, which ignore its SIGTERM
        # (loaders.py). They notice within seconds that this process has gone.
        os._exit(1)
