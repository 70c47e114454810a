"""What dask costs and what it buys: the same batches read in four ways, interleaved.

  uv run python dask_modes.py                        the embedded ocean store
  uv run python dask_modes.py --url output/ocean.zarr --batch_size 1

Each way reads the same random batches; the rounds take turns, so that a busy machine slows all of
them. After each the last batches are compared: they are the same to the bit. The table has the
median of the rounds. CPU is that of this process and of the cluster's. Memory is the most that a
process which reads in one way has after a batch, and its cluster's; a process with nothing but the
imports has what the last line says.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, get_args

import dask
import numpy as np
import psutil
import torch
from distributed import default_client
from jsonargparse import auto_cli
from src.config import HelpFormatter
from src.data.cloud_dask import DaskMode
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError, one_line_errors
from tqdm import tqdm

# dask's profiler stops Python 3.11 for ever once in a while; README.md has the reason.
dask.config.set({"distributed.worker.profile.enabled": sys.version_info >= (3, 12)})


@dataclass
class Way:
    """One way to read, and what was measured: samples per second, and for a sample CPU in ms."""

    dataset: CloudDataset
    speeds: list[float]
    cpu: list[float]
    requests: float = 0


def cpu_seconds(mode: DaskMode) -> float:
    """CPU time so far of this process, and of the cluster's if the mode has one."""
    seconds = time.process_time()
    if mode == "cluster":
        seconds += sum(default_client().run(time.process_time).values())
    return seconds


def resident() -> float:
    """Memory of this process now, in MB."""
    return psutil.Process().memory_info().rss / 1e6


def memory_of(mode: DaskMode, url: str, threads: int, batches: list[list[int]]) -> float:
    """Memory in MB, at most after one of the batches; for a process that does nothing else."""
    dataset = CloudDataset("train", url, dask=mode, dask_threads=threads)
    most = 0.0
    for indices in batches:
        dataset.__getitems__(indices)
        elsewhere = default_client().run(resident).values() if mode == "cluster" else []
        most = max(most, resident() + sum(elsewhere))
    end_cluster(mode)  # here, because a process of a pool does not end as a program does
    return most


def end_cluster(mode: DaskMode) -> None:
    """End the cluster that this process has started for a mode."""
    if mode == "cluster":
        client = default_client()
        client.close()
        client.cluster.close()


def in_own_process(function: Callable[..., float], *arguments: Any) -> float:
    """What the function returns in a new process, which has nothing of this one's memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def measure(
    url: str = "s3://embedded/ocean.zarr",
    batch_size: int = 16,
    batches: int = 8,
    rounds: int = 5,
    threads: int = 4,
) -> None:
    """Read random batches of training windows with and without dask.

    Args:
        url: the store.
        batch_size: windows that are asked for together.
        batches: batches in a round.
        rounds: how often each way has its turn.
        threads: threads of dask.
    """
    if min(batch_size, batches, rounds, threads) < 1:
        raise UserError("batch_size, batches, rounds, threads: allowed: from 1")
    if os.environ.get("DASK_SCHEDULER_ADDRESS"):  # its processes may have read other things before
        raise UserError("DASK_SCHEDULER_ADDRESS: allowed here: not set; this measures its own")
    ways = {
        mode: Way(CloudDataset("train", url, dask=mode, dask_threads=threads), [], [])
        for mode in get_args(DaskMode)
    }
    generator = torch.Generator().manual_seed(0)
    for way in ways.values():
        way.dataset[0]  # connections and, in the cluster, imports
    for _ in tqdm(range(rounds), unit="round", disable=None):
        order = torch.randint(len(way.dataset), (batches, batch_size), generator=generator)
        last = []
        for mode, way in ways.items():
            requests, cpu = int(way.dataset.counts[0, 0]), cpu_seconds(mode)
            start = time.perf_counter()
            for indices in order.tolist():
                batch = way.dataset.__getitems__(indices)
            way.speeds.append(order.numel() / (time.perf_counter() - start))
            way.cpu.append(1e3 * (cpu_seconds(mode) - cpu) / order.numel())
            way.requests = (int(way.dataset.counts[0, 0]) - requests) / order.numel()
            last.append(np.stack([x for x, _ in batch]))
        if not all(np.array_equal(last[0], x, equal_nan=True) for x in last):
            raise UserError("the ways do not read the same samples")
    for mode in ways:
        end_cluster(mode)
    progress = tqdm(ways, desc="memory", unit="way", disable=None)
    memory = {
        mode: in_own_process(memory_of, mode, url, threads, order.tolist()) for mode in progress
    }
    print_table(ways, memory)


def print_table(ways: dict[DaskMode, Way], memory: dict[DaskMode, float]) -> None:
    """A line for each way, and one for the memory that needs no reading."""
    columns = ("samples/s", "CPU ms/sample", "requests/sample", "memory MB")
    print(f"{'':16}{columns[0]:>10}{columns[1]:>15}{columns[2]:>17}{columns[3]:>11}")
    for mode, way in ways.items():
        # The cluster's process has a dataset, and counts, of its own.
        requests = "elsewhere" if mode == "cluster" else f"{way.requests:.1f}"
        print(
            f"{mode:<16}{np.median(way.speeds):>10.0f}{np.median(way.cpu):>15.1f}"
            f"{requests:>17}{memory[mode]:>11.0f}"
        )
    print(f"{'nothing but imports':<58}{in_own_process(resident):>11.0f}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(measure, description=__doc__, formatter_class=HelpFormatter)
        sys.exit()
