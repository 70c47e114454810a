"""How fast can this pipeline be at best, and what holds it back? Five measurements, one verdict.

  uv run python ceiling.py                             the ladder's data, 30 ms away
  uv run python ceiling.py --delay 0ms --step_time real

The model needs so many samples per second, the store delivers its chunks so fast, a processor
unpacks and copies so much, and the loader reaches what it reaches. In the table all of them are
samples per second of the same windows, so the smallest number is the bottleneck.
"""

import os
import sys
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import tensorstore as ts
import yaml
from benchmark_one import Model, Order
from jsonargparse import auto_cli
from src.config import HelpFormatter
from src.data.cloud_errors import CloudError
from src.data.fast_dataset import FastDataset
from src.data.fast_store import PACKED, key_value_store, read_context
from src.data.look_ahead import LookAhead
from src.data.s3_server import connect
from src.errors import UserError, one_line_errors
from torch.utils.data import default_collate
from tqdm import tqdm
from utils import CHAPTER, machine, slow_network

CONCURRENCIES = (1, 4, 16, 64, 128)
WHAT_HELPS = {
    "model": "the loader keeps up: nothing to gain here, look at the model (chapter 4)",
    "store": "fewer requests: packed, chunks like the windows, a cache; or a nearer store",
    "decode": "a faster codec (blosc lz4), chunks that fit the windows, more cores",
    "copy": "smaller windows, or fewer variables",
    "loader": "more in flight: batches_ahead, concurrency",
}


def for_a_while(work: Callable[[int], int], seconds: float) -> float:
    """What ``work`` gets done per second; it takes a number and returns how much it has done."""
    done, number, start = 0, 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += work(number)
        number += 1
    return done / (time.perf_counter() - start)


def chunk_shape(array: ts.TensorStore) -> tuple[int, ...]:
    """The shape of an object's values."""
    shape = array.chunk_layout.write_chunk.shape or ()
    return tuple(size or 1 for size in shape)


def chunks_of_batch(dataset: FastDataset, indices: list[int]) -> list[str]:
    """The keys of the objects that a batch needs, each once."""
    found = set()
    names = [PACKED] if dataset.packed else dataset.variables
    for index in indices:
        place = dataset.slices(index, dataset.opened.origin)
        for name, array in zip(names, dataset.arrays, strict=True):
            shape = chunk_shape(array)[-3:]
            touched = (
                {i % n // size for i in range(part.start, part.stop)}
                for part, n, size in zip(place, array.shape[-3:], shape, strict=True)
            )
            lead = ("0",) if dataset.packed else ()
            found |= {"/".join([name, "c", *lead, *map(str, c)]) for c in product(*touched)}
    return sorted(found)


def raw_gets(
    dataset: FastDataset, batches: list[list[int]], concurrency: int, seconds: float
) -> tuple[float, float]:
    """Samples per second if the same objects were only fetched, and their megabytes per second.

    Whole batches, with the next ones on their way, as the reader does it; nothing is decoded.
    """
    context = read_context(concurrency, 0, dataset.patience)
    spec = key_value_store(f"{dataset.url}/", dataset.anonymous)
    store = ts.KvStore.open(spec, context=context).result()
    coming: list[list[ts.Future]] = []
    size = 0

    def fetch(number: int) -> int:
        nonlocal size
        while len(coming) <= dataset.batches_ahead:
            keys = chunks_of_batch(dataset, batches[(number + len(coming)) % len(batches)])
            coming.append([store.read(key) for key in keys])
        for future in coming.pop(0):
            size += len(future.result().value)
        return len(batches[0])

    start = time.perf_counter()
    speed = for_a_while(fetch, seconds)
    return speed, size / 1e6 / (time.perf_counter() - start)


def decoding(dataset: FastDataset, batch: list[int], seconds: float) -> tuple[float, float]:
    """Samples per second from memory, with all cores, and decoded megabytes per second."""
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    remote = ts.KvStore.open(key_value_store(f"{dataset.url}/", dataset.anonymous)).result()
    here = ts.KvStore.open("memory://", context=context).result()
    names = [PACKED] if dataset.packed else dataset.variables
    for key in [*chunks_of_batch(dataset, batch), *(f"{name}/zarr.json" for name in names)]:
        here.write(key, remote.read(key).result().value).result()
    spec: dict[str, Any] = {"driver": "zarr3", "fill_missing_data_reads": False}
    local = FastDataset.__new__(FastDataset)
    local.__dict__ |= dataset.__dict__ | {"_pending": {}, "_arrays": []}
    local._arrays = [
        ts.open(
            spec | {"kvstore": {"driver": "memory", "path": f"{name}/"}}, open=True, context=context
        ).result()
        for name in names
    ]
    speed = for_a_while(lambda _: len(local.__getitems__(batch)), seconds)
    sizes = (np.prod(chunk_shape(array)) * 4 for array in dataset.arrays)
    decoded = len(chunks_of_batch(dataset, batch)) / len(names) * sum(sizes)
    return speed, speed / len(batch) * decoded / 1e6


def copying(dataset: FastDataset, batch_size: int, seconds: float) -> tuple[float, float]:
    """Samples and megabytes per second that memory copies."""
    source = np.ones((batch_size, len(dataset.variables), *dataset.window), np.float32)
    target = np.empty_like(source)

    def copy(_: int) -> int:
        target[...] = source
        return batch_size

    speed = for_a_while(copy, seconds)
    return speed, speed * source[0].nbytes / 1e6


def main(
    file: str = "benchmark_configs/ladder.yaml",
    delay: str = "30ms",
    step_time: float | str = 0.1,
    packed: bool = True,
    batches_ahead: int = 8,
    concurrency: int = 128,
    seconds: float = 5.0,
) -> None:
    """Measure the five parts of a pipeline.

    Args:
        file: defaults says which data, which batch and which model.
        delay: before each request to the embedded server.
        step_time: seconds that stand for the model's step; real trains the chapter's model.
        packed: read the packed copy.
        batches_ahead: as for FastDataset.
        concurrency: as for FastDataset.
        seconds: that each measurement takes.
    """
    settings = yaml.safe_load((CHAPTER / file).read_text())["defaults"]
    size = settings["batch_size"]
    if seconds <= 0:
        raise UserError(f"seconds: {seconds}; allowed: above 0")
    connect()
    with slow_network(delay) as variables:
        os.environ |= variables
        arguments = settings["dataset_args"] | {"batches_ahead": batches_ahead}
        arguments |= {"packed": packed, "concurrency": concurrency}
        dataset = FastDataset("train", **arguments)
        batches = list(Order(len(dataset), size, 400))
        sample_bytes = dataset[0][0].nbytes
        rows: list[tuple[str, str, float, float]] = []
        steps = tqdm(total=4 + len(CONCURRENCIES), unit="measurement", disable=None, leave=False)
        model = Model(step_time, dataset.sample_shape, settings.get("model", {}))
        ready = default_collate(dataset.__getitems__(batches[0]))

        def serve(_: int) -> int:
            model.step(ready)
            return size

        speed = for_a_while(serve, seconds)
        rows.append(("model", f"step of {size} samples", speed, speed * sample_bytes / 1e6))
        steps.update()
        for number in CONCURRENCIES:
            found = raw_gets(dataset, batches, number, seconds)
            rows.append(("store", f"{number} requests in flight", *found))
            steps.update()
        rows.append(("decode", "all cores, from memory", *decoding(dataset, batches[0], seconds)))
        steps.update()
        rows.append(("copy", "memory to memory", *copying(dataset, size, seconds / 5)))
        steps.update()
        served = iter(LookAhead(batches * 50, dataset))  # type: ignore[arg-type]
        speed = for_a_while(lambda _: len(dataset.__getitems__(next(served))), seconds)
        rows.append(("loader", "as configured, no model", speed, speed * sample_bytes / 1e6))
        steps.close()
    report(rows, sample_bytes)


def report(rows: list[tuple[str, str, float, float]], sample_bytes: int) -> None:
    """The table and the verdict."""
    about = machine()
    print(f"{about['processor']}, {about['cores']} cores; samples of {sample_bytes / 1e3:.1f} kB")
    print(f"{'':10}{'':28}{'samples/s':>12}{'MB/s':>10}")
    best: dict[str, float] = {}
    for part, what, speed, megabytes in rows:
        print(f"{part:<10}{what:<28}{speed:>12,.0f}{megabytes:>10,.1f}")
        best[part] = max(speed, best.get(part, 0.0))
    loader = best.pop("loader")
    narrow = min(best, key=best.__getitem__)
    # Above 100 %: batches that are on their way together share chunks, raw requests do not.
    print(f"loader: {loader / best['store']:.0%} of what the store delivers to raw requests")
    if loader >= best["model"]:
        narrow = "model"
    elif loader < 0.8 * best[narrow]:
        narrow = "loader"
    print(f"bottleneck: {narrow}; {WHAT_HELPS[narrow]}")


if __name__ == "__main__":
    with one_line_errors():
        try:
            auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
        except ValueError as error:  # TensorStore's
            raise CloudError(str(error)) from error
        sys.exit()
