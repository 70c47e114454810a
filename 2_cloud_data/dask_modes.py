"""What dask costs and what it buys: the same batches read in four ways, interleaved.

  uv run python dask_modes.py                        the embedded ocean store
  uv run python dask_modes.py --url output/ocean.zarr --batch_size 1

Each way reads the same random batches; the rounds take turns, so that a busy machine slows all of
them. The table has the median of the rounds.
"""

import sys
import time
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from jsonargparse import auto_cli
from src.config import HelpFormatter
from src.data.cloud_dask import DaskMode
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError, one_line_errors
from tqdm import tqdm


@dataclass
class Way:
    """One way to read, and what was measured: samples per second, milliseconds of CPU each."""

    dataset: CloudDataset
    speeds: list[float]
    cpu: list[float]
    requests: int = 0


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
    ways = {
        mode: Way(CloudDataset("train", url, dask=mode, dask_threads=threads), [], [])
        for mode in get_args(DaskMode)
    }
    generator = torch.Generator().manual_seed(0)
    for way in ways.values():
        way.dataset[0]  # connections and, in the cluster, imports
    for _ in tqdm(range(rounds), unit="round", disable=None):
        order = torch.randint(len(way.dataset), (batches, batch_size), generator=generator)
        for way in ways.values():
            requests, cpu, start = int(way.dataset.counts[0, 0]), time.process_time(), time.time()
            for indices in order.tolist():
                way.dataset.__getitems__(indices)
            way.speeds.append(order.numel() / (time.time() - start))
            way.cpu.append(1e3 * (time.process_time() - cpu) / order.numel())
            way.requests = int(way.dataset.counts[0, 0]) - requests
    print(f"{'':16}{'samples/s':>10}{'CPU ms/sample':>15}{'requests/sample':>17}")
    for mode, way in ways.items():
        own = f"{np.median(way.cpu):>15.1f}{way.requests / (batches * batch_size):>17.1f}"
        elsewhere = f"{'elsewhere':>15}{'elsewhere':>17}"  # in the cluster's process
        print(f"{mode:<16}{np.median(way.speeds):>10.0f}{elsewhere if mode == 'cluster' else own}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(measure, description=__doc__, formatter_class=HelpFormatter)
        sys.exit()
