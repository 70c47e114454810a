"""How fast can this pipeline be at best? Raw requests of the objects that its batches need.

uv run python ceiling.py                  the ladder's windows, 30 ms away from the store
uv run python ceiling.py --delay 0
uv run python ceiling.py --stream true    in the order of ChunkStream, with its cache
uv run python ceiling.py --file mine_ladder.yaml --delay 0    a copy of ladder.yaml with your url
"""

import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from timeit import timeit

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


def get_raw(dataset: FastDataset, names: list[set[str]]) -> None:
    """Get the objects of all batches, as far ahead as the loader, and decode nothing."""
    context = shared_context(dataset.concurrency, 0.0)
    place = kvstore(f"{dataset.url}/", dataset.anonymous)
    store = ts.KvStore.open(place, context=context).result()
    objects: dict[str, ts.Future] = {}
    waiting: deque[list[ts.Future]] = deque()
    ahead = 0  # grows as in LookAhead
    for own_names in names:
        if not dataset.cache_mb:
            # As in the loader, only an object that is on its way is not asked for again.
            objects = {n: f for n, f in objects.items() if not f.done()}
        for name in own_names - objects.keys():
            objects[name] = store.read(name)
        waiting.append([objects[name] for name in own_names])
        if len(waiting) > ahead:
            wait(waiting.popleft())
            ahead = min(2 * ahead + 1, dataset.batches_ahead)
    for futures in waiting:
        wait(futures)


def wait(futures: list[ts.Future]) -> None:
    """Until all of them are there. Raises ValueError for a request that has failed."""
    for future in futures:
        future.result()


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
        num_batches: how many each turn reads.
    """
    defaults = yaml.safe_load(Path(file).read_text())["defaults"]
    kind = ChunkStream if stream else FastDataset
    dataset = kind("train", **defaults["dataset_args"])
    size = defaults["batch_size"]
    order = getattr(dataset, "epoch_order", epoch_order)(len(dataset), 0, 0)
    number = min(num_batches, len(order) // size)
    batches = [order[size * n : size * (n + 1)] for n in range(number)]
    names = object_names(dataset, batches)  # which takes longer than to ask for them
    loader = DataLoader(dataset, batch_sampler=LookAhead(batches, dataset))
    actions = {
        "raw requests": lambda: get_raw(dataset, names),
        "loader": lambda: deque(loader, maxlen=0),  # takes all batches, keeps none
    }

    seconds: dict[str, list[float]] = {name: [] for name in actions}
    with slow_network(delay):
        for _ in tqdm(range(3), unit="turn", disable=None):
            # Nothing of the last turn is in the cache, and the arrays are open, as the raw store.
            shared_context.cache_clear()
            dataset.opened = None
            dataset[0]
            for name, action in actions.items():
                seconds[name].append(timeit(action, number=1))

    raw, loaded = (size * number / median(turns) for turns in seconds.values())
    print(f"raw requests {raw:8.0f} samples/s")
    print(f"loader       {loaded:8.0f} samples/s, {loaded / raw:.2f} of it")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
