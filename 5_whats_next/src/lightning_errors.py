"""One line for what a user can put right, also when several processes fail together."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.distributed import DistError

from src.errors import UserError
from src.lightning_ranks import speaks


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End this process with one line on stderr and code 1 for an error, with 130 for Ctrl-C.

    Where all ranks have the same error, rank 0 alone reports it.
    """
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}" if speaks(error) else 1)
    except MisconfigurationException as error:
        sys.exit(f"error: {first_sentence(error)}")
    except DistError as error:  # the ranks do not find each other, or lose each other
        sys.exit(f"error: the processes cannot talk to each other: {first_sentence(error)}")
    except RuntimeError as error:
        if "gloo" not in str(error).lower():
            raise
        sys.exit(
            f"error: this rank lost another one ({first_sentence(error)}); "
            "the first error in the other ranks' output says why"
        )
    except OSError as error:  # a file that is not there, a disk that is full
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def first_sentence(error: Exception) -> str:
    """The part of a library's message that says what is wrong."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # Some begin with the place in the library's code, in brackets, and end with advice.
    return re.sub(r"^\[\S*\] ", "", lines[0]).partition(". ")[0]
