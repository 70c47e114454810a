"""What dask costs and what it buys: the same batches, read under each of its schedulers.

uv run python dask_modes.py
"""

import itertools
import multiprocessing
import resource
import statistics
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
from distributed import Client
from tqdm import tqdm

from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import one_line_errors

MODES = ("none", "single-threaded", "threads", "cluster")


def peak_memory() -> float:
    """The most that this process has had in memory, in MB."""
    units = 1e6 if sys.platform == "darwin" else 1e3  # bytes on macOS, kB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units


def measure(mode: Any, batches: list[list[int]]) -> tuple[float, float, float]:
    """Samples per second, memory at most (MB), and the sum of the last sample's values."""
    settings = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    # A client sets dask's scheduler. As its worker ends, it may say "Unclosed client session",
    # which is harmless: https://github.com/zarr-developers/zarr-python/issues/2901
    with (
        Client(host="127.0.0.1", **settings)
        if mode == "cluster"
        else nullcontext() as client
    ):
        dataset = CloudDataset("train", dask="threads" if mode == "cluster" else mode)
        dataset[0]  # connections are opened
        start = time.perf_counter()
        for indices in batches:
            samples = dataset.__getitems__(indices)
        seconds = time.perf_counter() - start
        memory = peak_memory()
        if client:
            memory += sum(client.run(peak_memory).values())
    last_window = samples[-1][0]
    checksum = last_window.nan_to_num().sum().item()
    return 16 * len(batches) / seconds, memory, checksum


def main() -> None:
    """Measure each mode five times, and print the medians."""
    indices = np.random.default_rng(0).permutation(len(CloudDataset("train")))
    batches = indices[: 12 * 16].reshape(12, 16).tolist()
    results = defaultdict(list)
    # The turns are interleaved, so that a busy machine slows all of them. Each is a process of its
    # own: nothing of the other ways is in its memory.
    for mode in tqdm(MODES * 5, unit="turn", disable=None):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            turn = process.submit(measure, mode, batches)
            results[mode].append(turn.result())
    # All of them have read the same values.
    all_turns = itertools.chain(*results.values())
    checksums = {checksum for _, _, checksum in all_turns}
    assert len(checksums) == 1
    print("scheduler          samples/s   to none   memory, MB")
    base = statistics.median(speed for speed, *_ in results["none"])
    for mode, turns in results.items():
        speed, memory, _ = map(statistics.median, zip(*turns, strict=True))
        print(f"{mode:<17}{speed:11.0f}{speed / base:10.1f}{memory:13.0f}")


if __name__ == "__main__":
    with one_line_errors():
        main()
