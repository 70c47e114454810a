"""How fast can this pipeline be at best, and what holds it back? Four speeds of the same windows.

uv run python ceiling.py                    the ladder's windows, 30 ms away from the store
uv run python ceiling.py --delay 0 --packed true --step_time 0.02
"""

import itertools
import os
import statistics
import time
from collections import deque
from contextlib import nullcontext

import numpy as np
import tensorstore as ts
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from slow_network import slow_network
from torch.utils.data import DataLoader
from tqdm import tqdm
from utils import read_configurations

from src.config import CHAPTER, HelpFormatter
from src.data.fast_dataset import FastDataset, LookAhead, spec
from src.data.loaders import epoch_order
from src.data.store import AXES
from src.errors import one_line_errors

TEXTS = {
    "model": "that it needs",
    "store": "raw requests of the same objects, as many under way; nothing is decoded",
    "decoding": "if nothing had to be waited for: all cores decode and copy",
    "loader": "all of it",
}
NUM_BATCHES = 100  # in each of three rounds


def object_names(dataset: FastDataset, indices: list[int]) -> set[str]:
    """The names of the distinct objects that a batch needs."""
    sizes = [dataset.lazy_fields.sizes[axis] for axis in AXES]
    places: set[tuple[int, ...]] = set()
    for index in indices:
        # Modulo, because a window may go on beyond the edge of the grid.
        touched = [
            {i % size // c for i in range(place.start, place.stop)}
            for place, size, c in zip(
                dataset.grid.slices(index), sizes, dataset.chunk[1:], strict=True
            )
        ]
        places |= set(itertools.product(*touched))
    first = "c/0" if dataset.packed else "c"
    return {
        f"{name}/{first}/{t}/{y}/{x}" for t, y, x in places for name in dataset.arrays
    }


def get_raw(store: ts.KvStore, needed: list[set[str]], batches_ahead: int) -> None:
    """Get the objects of each batch, with as many batches under way as in the loader."""
    in_flight: dict[str, ts.Future] = {}
    queue: deque[list[ts.Future]] = deque()
    # In the last rounds nothing is asked for: they collect the batches under way.
    for names in [*needed, *[set[str]()] * batches_ahead]:
        # As in the loader, an object that is on its way is not asked for again.
        new = [
            name for name in names if name not in in_flight or in_flight[name].done()
        ]
        in_flight |= {name: store.read(name) for name in new}
        queue.append([in_flight[name] for name in names])
        if len(queue) > batches_ahead:
            for future in queue.popleft():
                assert future.result().state == "value", "an object is missing"


def main(
    delay: NonNegativeFloat = 0.03,
    step_time: PositiveFloat = 0.1,
    packed: bool = False,
) -> None:
    """Measure in turns, print samples per second, and name the bottleneck.

    Args:
        delay: seconds before each request.
        step_time: seconds of your model's training step, for a batch of 32 windows.
        packed: read the copy with all variables in each chunk.
    """
    # The row of the ladder with all of the reader's defaults: both measure the same windows.
    ladder = read_configurations(CHAPTER / "benchmark_configs" / "ladder.yaml")
    settings = ladder["256 requests, the default"]["dataset_args"] | {"packed": packed}
    dataset = FastDataset("train", **settings)
    order = epoch_order(len(dataset), seed=0, epoch=0)
    batches = np.array(order[: 32 * NUM_BATCHES]).reshape(-1, 32).tolist()
    needed = [object_names(dataset, batch) for batch in batches]
    seconds: dict[str, list[float]] = {"store": [], "loader": [], "decoding": []}
    with slow_network(delay) if delay else nullcontext():
        context = ts.Context({"s3_request_concurrency": {"limit": dataset.concurrency}})
        # The store's folder: spec() puts a slash behind the name of an array, which is empty here.
        kvstore = spec(dataset.url, "", dataset.driver, dataset.anonymous)["kvstore"]
        kvstore["path"] = kvstore["path"].removesuffix("/")
        store = ts.KvStore.open(kvstore, context=context).result()
        for _ in tqdm(range(3), unit="round", disable=None):
            start = time.perf_counter()
            get_raw(store, needed, dataset.batches_ahead)
            seconds["store"].append(time.perf_counter() - start)
            dataset[0]  # opened before the clock starts, as the raw store is
            start, computed = time.perf_counter(), time.process_time()
            for _ in DataLoader(dataset, batch_sampler=LookAhead(batches, dataset)):
                pass
            seconds["loader"].append(time.perf_counter() - start)
            # The threads of TensorStore count, too.
            seconds["decoding"].append(
                (time.process_time() - computed) / (os.cpu_count() or 1)
            )
    speeds = {k: 32 * len(batches) / statistics.median(v) for k, v in seconds.items()}
    speeds["model"] = 32 / step_time
    for name, text in TEXTS.items():
        print(f"{name:<10}{speeds[name]:8.0f} samples/s   {text}")
    print(
        f"the loader reaches {speeds['loader'] / speeds['store']:.2f} of what the store gives"
    )
    print("bottleneck:", min(("model", "store", "decoding"), key=speeds.__getitem__))


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
