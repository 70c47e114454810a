"""A signal comes to a rank in some phase of its training.

python -m tests.in_phase FUNCTION CALL RANK SETTINGS...     at the CALL-th call of FUNCTION
"""

import contextlib
import os
import pkgutil
import signal
import sys
from collections.abc import Iterator
from unittest import mock

from src.run.errors import one_line_errors
from src.run.launch import has_rank, launch


@contextlib.contextmanager
def signal_at(name: str, number: int) -> Iterator[None]:
    """SIGTERM for this process at this call of a function."""
    function = pkgutil.resolve_name(name)
    calls = []

    def with_signal(*arguments, **settings):
        calls.append(1)
        if len(calls) == number:
            signal.raise_signal(signal.SIGTERM)
        return function(*arguments, **settings)

    with mock.patch(name, with_signal):
        yield


if __name__ == "__main__":
    if not has_rank():
        sys.exit(launch(2))
    import lightning_train

    name, number, rank = sys.argv[1:4]
    sys.argv[1:4] = []
    is_here = os.environ["LOCAL_RANK"] == rank
    with (
        one_line_errors(),
        signal_at(name, int(number)) if is_here else contextlib.nullcontext(),
    ):
        sys.exit(lightning_train.main())
