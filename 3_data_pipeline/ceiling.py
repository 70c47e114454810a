"""How fast can this pipeline be at best, and what holds it back? Five measurements, one verdict.

  uv run python ceiling.py                             the ladder's data, 30 ms away
  uv run python ceiling.py --delay 0ms --step_time real

The model needs so many samples per second, the store delivers its chunks so fast, a processor
unpacks and copies so much, and the loader reaches what it reaches. In the table all of them are
samples per second of the same windows, so the smallest number is the bottleneck.
"""

import copy
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorstore as ts
import yaml
from benchmark_one import Model, Order
from src.data.cloud_errors import CloudError
from src.data.fast_dataset import FastDataset
from src.data.fast_source import Source, key_value_store_of, object_shape
from src.data.fast_store import key_value_store, read_context
from src.data.look_ahead import LookAhead
from src.data.s3_server import connect
from src.errors import UserError, one_line_errors
from torch.utils.data import default_collate
from tqdm import tqdm
from utils import CHAPTER, machine, run_command, slow_network

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


def objects_of_batch(dataset: FastDataset, indices: list[int]) -> list[tuple[int, str]]:
    """The objects that a batch needs, each once: number of the array, and key in it."""
    origin = dataset.opened.origin
    parts = [part for i in indices for _, part in dataset.parts(dataset.slices(i, origin))]
    return sorted(dataset.source.objects(parts))


def raw_gets(
    dataset: FastDataset, batches: list[list[int]], concurrency: int, seconds: float
) -> tuple[float, float]:
    """Samples per second if the same objects were only fetched, and their megabytes per second.

    Whole batches, with the next ones on their way, as the reader does it; nothing is decoded.
    """
    context = read_context(concurrency, 0, dataset.patience)
    place = key_value_store(f"{dataset.url}/", dataset.anonymous)
    places = [place | {"path": key_value_store_of(array).path} for array in dataset.source.arrays]
    stores = [ts.KvStore.open(place, context=context).result() for place in places]
    coming: list[list[ts.Future]] = []
    size = 0

    def fetch(number: int) -> int:
        nonlocal size
        while len(coming) <= dataset.batches_ahead:
            needed = objects_of_batch(dataset, batches[(number + len(coming)) % len(batches)])
            coming.append([stores[which].read(key) for which, key in needed])
        for future in coming.pop(0):
            size += len(future.result().value)
        return len(batches[0])

    start = time.perf_counter()
    speed = for_a_while(fetch, seconds)
    return speed, size / 1e6 / (time.perf_counter() - start)


def decoding(dataset: FastDataset, batch: list[int], seconds: float) -> tuple[float, float]:
    """Samples per second from memory, with all cores, and decoded megabytes per second."""
    needed = objects_of_batch(dataset, batch)
    context, here = ts.Context(), []  # a store in memory belongs to a context
    for number, array in enumerate(dataset.source.arrays):
        place = {"driver": "memory", "path": f"{number}/"}
        store = ts.KvStore.open(place, context=context).result()
        keys = [key for which, key in needed if which == number]
        for key in ["zarr.json", *keys]:
            store.write(key, key_value_store_of(array).read(key).result().value).result()
        here.append(ts.open({"driver": "zarr3", "kvstore": place}, context=context).result())
    local = copy.copy(dataset)
    # A copy opens the store for itself, unless it has it open.
    local._opened, local._source = dataset._opened, Source(here, dataset.source.rows)
    speed = for_a_while(lambda _: len(local.__getitems__(batch)), seconds)
    decoded = sum(4 * np.prod(object_shape(dataset.source.arrays[which])) for which, _ in needed)
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
        batches = list(Order(dataset, size, 400))
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
            run_command(main, __doc__)
        except ValueError as error:  # TensorStore's
            raise CloudError(str(error)) from error
        sys.exit()
