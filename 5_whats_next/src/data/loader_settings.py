"""How a DataLoader's workers are started and kept."""

import os
import sys
from multiprocessing import forkserver
from typing import Any, Literal

from src.errors import UserError

StartMethod = Literal["forkserver", "spawn", "fork"]
PRELOAD = ["src.data.forkserver"]


def worker_settings(
    num_workers: int, persistent_workers: bool, prefetch_factor: int, start_method: StartMethod
) -> dict[str, Any]:
    """Arguments of a DataLoader; without workers there is nothing to set.

    Raises UserError for a number that makes no sense.
    """
    if prefetch_factor < 1:
        raise UserError(f"data.prefetch_factor: {prefetch_factor} is too small; allowed: from 1")
    if not num_workers:
        return {}
    if start_method == "forkserver":
        start_forkserver()
    return {
        "persistent_workers": persistent_workers,
        "prefetch_factor": prefetch_factor,
        "multiprocessing_context": start_method,
    }


def start_forkserver() -> None:
    """Start the process that forks the workers; it imports what they need while others go on.

    It imports that once, before anybody has opened a store: a worker starts in a moment then.
    """
    forkserver.set_forkserver_preload(PRELOAD)
    # Before Python 3.12.8 and 3.13.1 it does not look for modules where this process does, and says
    # nothing when it finds none: https://github.com/python/cpython/issues/117378
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
