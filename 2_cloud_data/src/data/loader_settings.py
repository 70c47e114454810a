"""How a DataLoader's workers are started and kept."""

import multiprocessing
from typing import Any, Literal

from src.errors import UserError

StartMethod = Literal["forkserver", "spawn", "fork"]
PRELOAD = ["src.data.usecase_cloud_dataset"]  # imports what any worker will need, torch included


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
        # The server imports them once and forks the workers from there, before anybody has opened
        # a store: they start in a moment instead of many seconds.
        multiprocessing.set_forkserver_preload(PRELOAD)
    return {
        "persistent_workers": persistent_workers,
        "prefetch_factor": prefetch_factor,
        "multiprocessing_context": start_method,
    }
