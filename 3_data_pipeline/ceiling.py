"""How fast can this pipeline be at best? Raw requests of the objects that its batches need.

uv run python ceiling.py                  the ladder's windows, 30 ms away from the store
uv run python ceiling.py --delay 0
uv run python ceiling.py --stream true    in the order of ChunkStream, with its cache
uv run python ceiling.py --file mine_ladder.yaml --delay 0    a copy of ladder.yaml with your url
"""

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
import yaml
import zarr
from jsonargparse import auto_cli
from slow_network import slow_network
from torch.utils.data import DataLoader
from tqdm import tqdm

from src.data.chunk_stream import ChunkStream
from src.data.fast_dataset import FastDataset
from src.data.fields import StoredField
from src.data.look_ahead import LookAhead
from src.data.sampler import epoch_order
from src.data.tensorstore_arrays import kvstore, shared_context
from src.run.config import HelpFormatter
from src.run.errors import UserError, one_line_errors

WARMUP = 20  # batches that do not count, as in ladder.yaml, while the look-ahead grows


def chunk_numbers(
    dataset: FastDataset, field: StoredField, index: int
) -> Iterator[tuple[int, ...]]:
    """The number of each chunk that a window touches, along the axes of the array."""
    time, lat, _ = dataset.grid.slices(index)
    places = {
        "time": np.arange(time.start, time.stop),
        "lat": np.arange(lat.start, lat.stop),
        "lon": dataset.grid.columns(index),
        "level": np.array([field.level or 0]),
    }
    numbers = []
    for axis, size in field.chunk.items():
        numbers.append(np.unique(places[axis] // size).tolist())
    return itertools.product(*numbers)


def object_names(dataset: FastDataset, batches: list[list[int]]) -> list[set[str]]:
    """The names of the distinct objects that each batch needs."""
    names: list[set[str]] = [set() for _ in batches]
    for field in dataset.stored:
        array = zarr.open_array(dataset.store, path=field.array, mode="r")
        if array.shards:
            raise UserError(f"{dataset.url}: its objects hold several chunks")
        for batch, own_names in zip(batches, names, strict=True):
            for index in batch:
                for number in chunk_numbers(dataset, field, index):
                    key = array.metadata.encode_chunk_key(number)
                    own_names.add(f"{field.array}/{key}")
    return names


class RawRequests:
    """Gets the objects of batches, as far ahead as the loader, and decodes nothing.

    Args:
        dataset: whose objects, and whose settings.
    """

    def __init__(self, dataset: FastDataset) -> None:
        context = shared_context(dataset.concurrency, 0.0)
        place = kvstore(f"{dataset.url}/", dataset.anonymous)
        self.store = ts.KvStore.open(place, context=context).result()
        self.batches_ahead = dataset.batches_ahead
        self.has_cache = dataset.cache_mb > 0
        self.requests: dict[str, ts.Future] = {}
        self.waiting: deque[list[ts.Future]] = deque()  # of each batch

    def prefetch(self, names: set[str]) -> None:
        """Ask for the objects of a batch."""
        if not self.has_cache:
            # As in the loader, only an object that is on its way is not asked for again.
            self.requests = {n: f for n, f in self.requests.items() if not f.done()}
        for name in names - self.requests.keys():
            self.requests[name] = self.store.read(name)
        self.waiting.append([self.requests[name] for name in names])

    def forget_requests(self) -> None:
        """Nothing to do: each turn has its own object."""

    def load(self, names: list[Any]) -> Iterator[set[str]]:
        """Yield each batch of names when its objects are there. Raises ValueError if one fails."""
        announced: Any = LookAhead(names, self)
        for batch in announced:
            for future in self.waiting.popleft():
                future.result()
            yield batch


def samples_per_second(batches: Iterable[Any], size: int) -> float:
    """How fast batches of this size come, without the first ones."""
    for number, _ in enumerate(batches):
        if number == WARMUP:
            start = time.perf_counter()
    return size * (number - WARMUP) / (time.perf_counter() - start)


def main(
    file: str = "benchmark_configs/ladder.yaml",
    delay: float = 0.03,
    stream: bool = False,
    num_batches: int = 100,
) -> None:
    """Measure both in three turns, and print the medians.

    Args:
        file: windows and batch size are its defaults; for a store of yours, a copy with your url.
        delay: seconds before each request.
        stream: in ChunkStream's order, in which each chunk is read once.
        num_batches: how many each turn reads; the first 20 do not count.
    """
    defaults = yaml.safe_load(Path(file).read_text())["defaults"]
    kind = ChunkStream if stream else FastDataset
    dataset = kind("train", **defaults["dataset_args"])
    size = defaults["batch_size"]
    order = getattr(dataset, "epoch_order", epoch_order)(len(dataset), 0, 0)
    number = min(num_batches, len(order) // size)
    if number <= WARMUP + 1:
        raise UserError(f"{number} batches; the first {WARMUP} do not count")
    batches = [order[size * n : size * (n + 1)] for n in range(number)]
    names = object_names(dataset, batches)  # which takes longer than to ask for them
    loader = DataLoader(dataset, batch_sampler=LookAhead(batches, dataset))

    turns = []
    with slow_network(delay):
        for _ in tqdm(range(3), unit="turn", disable=None):
            # Nothing of the last turn is in the cache, and the arrays are open, as the raw store.
            shared_context.cache_clear()
            dataset.opened = None
            dataset[0]
            raw = RawRequests(dataset).load(names)
            # The raw requests first, then the loader.
            turns.append([samples_per_second(way, size) for way in (raw, loader)])

    raw_rate, rate = np.median(turns, axis=0)
    print(f"raw requests {raw_rate:8.0f} samples/s")
    print(f"loader       {rate:8.0f} samples/s, {rate / raw_rate:.2f} of it")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
