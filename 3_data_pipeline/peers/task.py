"""What all readers are given: which samples, from which store, normalised how.

Everything is plain data, so that it goes to another process as JSON, and into the log.

Shapes: B samples, V variables, T months, H latitudes, W longitudes.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from src.data.s3_server import BUCKET, connect
from src.data.statistics import normalise
from torch import Tensor

CHAPTER = Path(__file__).resolve().parents[1]
HEIGHT, WIDTH = 256, 512
WINDOW = (1, 64, 64)  # months, latitudes and longitudes of a sample, and of a chunk


@dataclass(frozen=True)
class Task:
    """One epoch over all windows that lie side by side in the training months."""

    url: str
    shape: tuple[int, int, int]  # of a variable
    variables: list[str]
    mean: list[float]  # (V,)
    std: list[float]  # (V,)
    train_months: tuple[int, int]
    val_months: tuple[int, int]
    window: tuple[int, int, int] = WINDOW
    batch_size: int = 32
    seed: int = 0

    @cached_property
    def starts(self) -> list[tuple[int, int, int]]:
        """First month, latitude and longitude of every sample."""
        ends = (self.train_months[1], *self.shape[1:])
        axes = zip((self.train_months[0], 0, 0), ends, self.window, strict=True)
        times, rows, columns = (range(begin, end - size + 1, size) for begin, end, size in axes)
        return list(product(times, rows, columns))

    def place(self, index: int) -> tuple[slice, slice, slice]:
        """Where a sample is in a variable."""
        pairs = zip(self.starts[index], self.window, strict=True)
        t, y, x = (slice(start, start + size) for start, size in pairs)
        return t, y, x

    def copy_url(self, peer: str) -> str:
        """Where a peer's own copy of the samples is: beside the store."""
        return f"{self.url.removesuffix('.zarr')}_{peer}"

    def dataset_args(self) -> dict[str, Any]:
        """The same samples, as arguments of the chapter's readers."""
        return {
            "url": self.url,
            "variables": list(self.variables),
            "window": tuple(self.window),
            "train_stride": tuple(self.window),
            "val_stride": tuple(self.window),
            "train_months": tuple(self.train_months),
            "val_months": tuple(self.val_months),
            "wrap_longitude": False,
        }


@dataclass(frozen=True)
class Collate:
    """A batch from its samples: stacked, normalised, a tensor. The same for every peer."""

    mean: list[float]
    std: list[float]

    def __call__(self, samples: Sequence[Any]) -> Tensor:
        """(B, V, T, H, W) from B values (V, T, H, W) as they are stored."""
        values = np.stack(samples)
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        return torch.from_numpy(normalise(values, mean, std))


def open_task(
    url: str,
    months: int,
    height: int = HEIGHT,
    width: int = WIDTH,
    window: tuple[int, int, int] = WINDOW,
) -> Task:
    """The task of a store whose months are divided as build_store.py does it."""
    from src.data.usecase_cloud_dataset import CloudDataset

    end = train_end(months)
    task = Task(url, (months, height, width), [], [], [], (0, end), (end + 1, months), window)
    dataset = CloudDataset("train", **task.dataset_args() | {"variables": None})
    statistics = {"mean": dataset.mean.tolist(), "std": dataset.std.tolist()}
    return Task(**asdict(task) | statistics | {"variables": dataset.variables})


def train_end(months: int) -> int:
    """First month after the training period: four fifths, whole years."""
    return max(1, months * 4 // 5 // 12 * 12)


def order(task: Task) -> list[int]:
    """The epoch's random order, for readers that leave it to others."""
    from src.data.sampler import epoch_order

    return epoch_order(len(task.starts), task.seed, 0)


def server(url: str) -> dict[str, str]:
    """Endpoint (it may be a slow one) and credentials, for the clients of the peers.

    Nothing for a URL that is not on the chapter's server.
    """
    if urlsplit(url).netloc != BUCKET:
        return {}
    own = connect()
    return {
        "endpoint": os.environ.get("EMBEDDED_S3_ENDPOINT") or own["AWS_ENDPOINT_URL"],
        "key": own["AWS_ACCESS_KEY_ID"],
        "secret": own["AWS_SECRET_ACCESS_KEY"],
    }


def fsspec_options(url: str) -> dict[str, Any]:
    """What s3fs needs to know; nothing for a local path."""
    if not (own := server(url)):
        return {}
    return {
        "key": own["key"],
        "secret": own["secret"],
        "endpoint_url": own["endpoint"],
        # Without it s3fs asks for the size of each object before it reads it: two requests for one.
        "max_concurrency": 1,
        "config_kwargs": {"max_pool_connections": 64},
    }
