"""How fast can this pipeline be at best, and what holds it back? Four speeds of the same windows.

uv run python ceiling.py                    the ladder's windows, 30 ms away from the store
uv run python ceiling.py --delay 0 --packed true --step_time 0.02
uv run python ceiling.py --stream true    in the order of ChunkStream, with its cache
uv run python ceiling.py --file mine_ladder.yaml --delay 0    a copy of ladder.yaml with your url
"""

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import tensorstore as ts
import yaml
import zarr
from dask.system import CPU_COUNT  # those that this process may use
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from slow_network import slow_network
from torch.utils.data import DataLoader
from tqdm import tqdm

from src.data.chunk_stream import ChunkStream
from src.data.fast_dataset import FastDataset
from src.data.look_ahead import LookAhead
from src.data.store import open_store
from src.data.tensorstore_arrays import kvstore, shared_context
from src.run.config import HelpFormatter
from src.run.errors import UserError, one_line_errors
from src.run.reproducibility import ResumableBatches, epoch_order

TEXTS = {
    "model": "that it needs",
    "store": "raw requests of the same objects, as many under way; nothing is decoded",
    "cores": "at most, if its CPU work were spread evenly over all of them",
    "loader": "reads, decodes and copies, without a model",
}


def object_names(dataset: FastDataset, indices: list[int]) -> set[str]:
    """The names of the distinct objects that a batch needs."""
    names = set()
    for index in indices:
        for name, region in dataset.stored_parts(index):
            array = stored_array(dataset.url, dataset.anonymous, name)
            for number in chunk_numbers(array, region):
                names.add(f"{array.path}/{array.metadata.encode_chunk_key(number)}")
    return names


def chunk_numbers(array: zarr.Array, region: list[slice]) -> Iterable[tuple[int, ...]]:
    """The chunks that a region touches: for each, its number along each axis."""
    by_axis = []
    for part, size, chunk in zip(region, array.shape, array.chunks, strict=True):
        # Modulo, because a window may go on beyond the edge of the grid.
        places = range(part.start, part.stop)
        by_axis.append({place % size // chunk for place in places})
    return itertools.product(*by_axis)


@functools.cache
def stored_array(url: str, anonymous: bool, name: str) -> zarr.Array:
    """An array as zarr opens it: it knows how its objects are called."""
    return zarr.open_array(open_store(url, anonymous=anonymous), path=name, mode="r")


class RawRequests:
    """A dataset's place in LookAhead: gets the objects of the same batches, and decodes nothing.

    Args:
        dataset: whose batches they are.
        store: where the objects are.
        batches: all of them.
    """

    def __init__(
        self, dataset: FastDataset, store: ts.KvStore, batches: list[list[int]]
    ) -> None:
        self.dataset = dataset
        self.batches_ahead = dataset.batches_ahead
        self.store = store
        self.batches = batches
        # Before the clock runs: to compute them takes longer than to ask.
        self.names = {tuple(batch): object_names(dataset, batch) for batch in batches}
        # By name, of all batches under way; and those of each of them.
        self.objects: dict[str, ts.Future] = {}
        self.requests: dict[tuple[int, ...], list[ts.Future]] = {}
        self.asked: list[str] = []  # an object's name for each request
        self.sizes: dict[str, int] = {}  # bytes of each object

    def forget_requests(self) -> None:
        """Begin again, with nothing in the cache."""
        self.objects.clear()
        self.requests.clear()
        self.asked.clear()

    def prefetch(self, batch: list[int]) -> None:
        """Ask for the objects of a batch, and do not wait."""
        # A stream's cache has what was read. Otherwise, as in the loader, only an object that is
        # on its way is not asked for again.
        if not isinstance(self.dataset, ChunkStream):
            self.objects = {n: f for n, f in self.objects.items() if not f.done()}
        names = self.names[tuple(batch)]
        for name in names - self.objects.keys():
            self.objects[name] = self.store.read(name)
            self.asked.append(name)
        self.requests[tuple(batch)] = [self.objects[name] for name in names]

    def get_all(self) -> None:
        """Wait for each batch, while those that follow are on their way."""
        for batch in LookAhead(self.batches, self):
            futures = self.requests.pop(tuple(batch))
            for name, future in zip(self.names[tuple(batch)], futures, strict=True):
                answer = future.result()
                if name not in self.sizes:  # the value is copied to Python
                    self.sizes[name] = len(answer.value)
                assert (
                    answer.state == "value" or self.dataset.missing_chunks == "land"
                ), "an object is lost"

    def megabytes(self) -> float:
        """What all requests have brought."""
        return sum(self.sizes[name] for name in self.asked) / 1e6


def seconds_of(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and CPU seconds of all threads of this process."""
    start = time.perf_counter()
    cpu_start = time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - cpu_start


def bottleneck(speeds: dict[str, float]) -> str:
    """Which of model, store, cores and loader limits; from their samples per second."""
    limit = min(("model", "store", "cores"), key=speeds.__getitem__)
    # The loader, if it is slower than a model for which the others would suffice, or far slower
    # than what limits it: then one core may be full while others idle.
    share = 1 if limit == "model" else 0.7
    if speeds["loader"] < share * speeds[limit]:
        limit = "loader"
    return limit


def main(
    file: str = "benchmark_configs/ladder.yaml",
    delay: NonNegativeFloat = 0.03,
    step_time: PositiveFloat = 0.1,
    packed: bool = False,
    stream: bool = False,
    num_batches: PositiveInt = 100,
) -> None:
    """Measure in turns, print samples per second, and name the bottleneck.

    Args:
        file: windows and batch size are its defaults; for a store of yours, a copy with your url.
        delay: seconds before each request.
        step_time: seconds of your model's training step, for a batch of this size.
        packed: read the copy with all variables in each chunk.
        stream: in ChunkStream's order, in which each chunk is read once.
        num_batches: how many each of three rounds reads, two times: 600 by default. Memory holds
            those that are under way.

    Raises:
        UserError: the store has shards, or fewer windows than a batch.
    """
    # With all of the reader's defaults.
    defaults = yaml.safe_load(Path(file).read_text())["defaults"]
    batch_size = defaults["batch_size"]
    settings = defaults["dataset_args"]
    if packed:  # the file may say it, too
        settings |= {"packed": True}
    kind = ChunkStream if stream else FastDataset
    dataset = kind("train", **settings)
    if dataset.has_shards:
        raise UserError(
            "a loader reads chunks of a shard, and raw requests whole shards"
        )
    if len(dataset) < batch_size:
        raise UserError(f"{file}: fewer windows than a batch of {batch_size}")
    order = getattr(dataset, "epoch_order", epoch_order)
    all_batches = ResumableBatches(
        len(dataset), batch_size, seed=0, step=lambda: 0, order=order
    )
    batches = list(itertools.islice(all_batches, num_batches))
    num_samples = batch_size * len(batches)
    loader = DataLoader(dataset, batch_sampler=LookAhead(batches, dataset))

    with slow_network(delay):
        place = kvstore(f"{dataset.url}/", dataset.anonymous)
        context = shared_context(dataset.concurrency, dataset.cache_mb)
        store = ts.KvStore.open(place, context=context).result()
        raw = RawRequests(dataset, store, batches)
        stages = {
            "store": raw.get_all,
            "loader": lambda: deque(loader, maxlen=0),  # takes all batches, keeps none
        }
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in stages}
        for _ in tqdm(range(3), unit="round", disable=None):
            # Nothing of the last round is in the cache, and the arrays are open, as the raw store.
            shared_context.cache_clear()
            dataset.opened = None
            dataset[0]
            for name, action in stages.items():
                rounds[name].append(seconds_of(action))

    speeds = {}
    cpu_milliseconds = {}
    for name, times in rounds.items():
        seconds, cpu_seconds = np.median(times, axis=0)
        speeds[name] = num_samples / seconds
        cpu_milliseconds[name] = 1000 * cpu_seconds / num_samples
    store_seconds = num_samples / speeds["store"]
    speeds["model"] = batch_size / step_time
    speeds["cores"] = 1000 * CPU_COUNT / cpu_milliseconds["loader"]
    for name, text in TEXTS.items():
        print(f"{name:<10}{speeds[name]:8.0f} samples/s   {text}")
    print(
        f"the loader reaches {speeds['loader'] / speeds['store']:.2f} of what the store gives,"
        f" with {cpu_milliseconds['loader']:.2f} ms of CPU a sample;"
        f" raw requests take {cpu_milliseconds['store']:.2f} ms"
    )
    print(
        f"raw requests: {len(raw.asked) / store_seconds:.0f} a second,"
        f" {raw.megabytes() / store_seconds:.1f} MB/s"
    )
    print("bottleneck:", bottleneck(speeds))


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
