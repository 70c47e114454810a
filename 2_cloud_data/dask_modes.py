"""What dask costs and what it buys: the same batches, read under each of its schedulers.

uv run python dask_modes.py            the embedded ocean, five rounds
"""

import argparse
import multiprocessing
import resource
import statistics
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from distributed import Client
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError, one_line_errors
from tqdm import tqdm

MODES = ("none", "single-threaded", "threads", "cluster")


def read(mode: str, batches: list[list[int]]) -> tuple[float, float, torch.Tensor]:
    """Samples per second, memory of this process at most (MB), and the last batch.

    A process of its own for each turn: nothing of the other ways is in its memory.
    """
    client = None
    if mode == "cluster":  # one process; it sets dask's scheduler
        client = Client(n_workers=1, threads_per_worker=2, host="127.0.0.1", dashboard_address=None)
    dataset = CloudDataset("train", dask="threads" if client else mode)
    dataset[0]  # connections are opened
    start = time.perf_counter()
    for indices in batches:
        samples = dataset.__getitems__(indices)
    seconds = time.perf_counter() - start
    if client:
        client.shutdown()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return sum(map(len, batches)) / seconds, memory, torch.stack([x for x, _ in samples])


def main() -> None:
    """Take turns, compare, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each scheduler")
    parser.add_argument("--batches", type=int, default=12, help="batches of 16 windows in a turn")
    options = parser.parse_args()
    indices = np.random.default_rng(0).permutation(len(CloudDataset("train")))
    batches = indices[: 16 * options.batches].reshape(-1, 16).tolist()
    results, first = defaultdict(list), None
    # The turns are interleaved, so that a busy machine slows all of them.
    for mode in tqdm(MODES * options.rounds, unit="turn", disable=None):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            speed, memory, batch = process.submit(read, mode, batches).result()
        results[mode].append((speed, memory))
        first = batch if first is None else first
        if not torch.equal(first.nan_to_num(-999), batch.nan_to_num(-999)):
            raise UserError(f"{mode} reads other values")
    print("scheduler          samples/s   to none   memory, MB")
    medians = {
        mode: [statistics.median(x) for x in zip(*results[mode], strict=True)] for mode in MODES
    }
    for mode, (speed, memory) in medians.items():
        print(f"{mode:<17}{speed:11.0f}{speed / medians['none'][0]:10.1f}{memory:13.0f}")


if __name__ == "__main__":
    with one_line_errors():
        main()
