"""Something happens in a phase of a training: python in_phase.py PHASE RANK EVENT SETTINGS...

EVENT is the number of a signal, or 0 for a full disk.
"""

import contextlib
import functools
import os
import pkgutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from src.run.errors import one_line_errors

MODULE = "src.model.lightning_module"
# What is called there first.
PHASES = {
    "opening data": "src.data.lightning_datamodule.RankLoaders",
    "sanity validation": f"{MODULE}.squared_error",
    "before the first step": "src.callbacks.report_callback.Tracker",
    "step": f"{MODULE}.AutoencoderModule.configure_gradient_clipping",
    "validation": f"{MODULE}.to_scores",
    "picture": "src.callbacks.report_callback.draw",
    "report": "src.callbacks.report_callback.report",
}


@contextlib.contextmanager
def event(phase: str, number: int) -> Iterator[None]:
    """The signal, or the error, at the first call in this phase."""
    function = pkgutil.resolve_name(PHASES[phase])
    calls = []

    @functools.wraps(function)
    def called(*arguments, **settings):
        calls.append(1)
        if len(calls) == 1 and number:
            signal.raise_signal(number)
        elif len(calls) == 1:
            raise OSError("no space left on device")
        return function(*arguments, **settings)

    with mock.patch(PHASES[phase], called):
        yield


if __name__ == "__main__":
    phase, rank, number = sys.argv[1:4]
    import lightning_train

    sys.argv[1:4] = []
    is_here = os.environ.get("LOCAL_RANK") == rank
    with (
        one_line_errors(),
        event(phase, int(number)) if is_here else contextlib.nullcontext(),
    ):
        sys.exit(lightning_train.main())
