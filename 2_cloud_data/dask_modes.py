"""What dask costs and what it buys: the same batches, read under each of its schedulers.

uv run python dask_modes.py
"""

from contextlib import nullcontext
from timeit import timeit
from typing import Any

import numpy as np
from distributed import Client

from src.data.build import build_ocean
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.errors import one_line_errors

MODES = ("none", "single-threaded", "threads", "distributed")


def measure(mode: Any, batches: list[list[int]]) -> float:
    """Samples per second."""
    settings = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    # As its worker ends, it may say "Unclosed client session", which is harmless:
    # https://github.com/zarr-developers/zarr-python/issues/2901
    has_client = mode == "distributed"
    with Client(host="127.0.0.1", **settings) if has_client else nullcontext():
        dataset = CloudDataset("train", dask=mode)
        dataset[0]  # connections are opened
        seconds = timeit(lambda: list(map(dataset.__getitems__, batches)), number=1)
    return sum(map(len, batches)) / seconds


def main() -> None:
    """Measure each mode five times, and print the medians."""
    build_ocean()
    indices = np.random.default_rng(0).permutation(len(CloudDataset("train")))
    batches = indices[: 12 * 16].reshape(12, 16).tolist()
    # The turns are interleaved, so that a busy machine slows all of them.
    turns = [[measure(mode, batches) for mode in MODES] for _ in range(5)]
    print("scheduler          samples/s")
    for mode, speed in zip(MODES, np.median(turns, axis=0), strict=True):
        print(f"{mode:<17}{speed:11.0f}")


if __name__ == "__main__":
    with one_line_errors():
        main()
