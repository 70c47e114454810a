"""Seven readers of the same samples, two writers of copies, and raw requests.

Each reader is called with a folder for temporary files and the points between two windows. The call
opens, and what it returns reads: an iterator over batches (32, V, 1, 64, 64).
"""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "3_data_pipeline"))

import numpy as np
import tensorstore as ts
import torch
import xarray as xr
import zarr
from ceiling import object_names
from torch import Tensor
from torch.utils.data import DataLoader

from src.data.chunk_stream import ChunkStream
from src.data.fast_dataset import FastDataset
from src.data.loaders import epoch_order
from src.data.look_ahead import LookAhead
from src.data.s3_server import connect
from src.data.store import AXES, open_store
from src.data.tensorstore_arrays import kvstore, shared_context

URL = "s3://embedded/bench.zarr"
BATCH = 32
WINDOW = (1, 64, 64)
SETTINGS: dict[str, Any] = {"url": URL, "window": WINDOW, "wrap_longitude": False}
SETTINGS |= {
    "train_period": ("1900-01", "1915-12"),
    "val_period": ("1917-01", "1919-12"),
}


def raw_values(dataset: FastDataset) -> FastDataset:
    """The dataset without normalisation, which the others do not have."""
    dataset.mean, dataset.std = np.zeros_like(dataset.mean), np.ones_like(dataset.std)
    return dataset


def in_batches(order: list[Any]) -> list[list[Any]]:
    return [order[first : first + BATCH] for first in range(0, len(order), BATCH)]


def fast_dataset(folder: str, stride: int) -> Iterator[Tensor]:
    """Chapter 3's reader in a random order."""
    dataset = raw_values(
        FastDataset("train", **SETTINGS, train_stride=(1, stride, stride))
    )
    batches = LookAhead(in_batches(epoch_order(len(dataset), 0, 0)), dataset)
    _ = dataset.array  # opens now, and not with the first batch
    return (x for x, _ in DataLoader(dataset, batch_sampler=batches))


def chunk_stream(folder: str, stride: int) -> Iterator[Tensor]:
    """Chapter 3's stream in its own order."""
    dataset = raw_values(
        ChunkStream("train", **SETTINGS, train_stride=(1, stride, stride))
    )
    batches = LookAhead(in_batches(dataset.epoch_order(len(dataset), 0, 0)), dataset)
    _ = dataset.array
    return (x for x, _ in DataLoader(dataset, batch_sampler=batches))


def raw_requests(folder: str, stride: int) -> Iterator[Tensor]:
    """The objects that the stream reads, in its order, and nothing made of them: no samples."""
    dataset = ChunkStream("train", **SETTINGS, train_stride=(1, stride, stride))
    batches = in_batches(dataset.epoch_order(len(dataset), 0, 0))
    needed = dict.fromkeys(
        name for batch in batches for name in sorted(object_names(dataset, batch))
    )
    context = shared_context(dataset.concurrency, dataset.cache_mb)
    place = kvstore(f"{URL}/", anonymous=False)
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
    windows = [
        dict(zip(AXES, dataset.grid.slices(index), strict=True)) for index in order
    ]
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
    return (
        torch.from_numpy(np.stack([*threads.map(read, batch)])) for batch in batches
    )


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
    fields = xr.open_zarr(open_store(URL), chunks={})[names]
    fields = fields.sel(time=slice(*SETTINGS["train_period"]))
    sizes = dict(zip(AXES, WINDOW, strict=True))
    overlap = dict.fromkeys(("lat", "lon"), WINDOW[1] - stride)
    generator = BatchGenerator(fields, sizes, overlap, preload_batch=True)

    def read(batch: list[int]) -> Tensor:
        return torch.from_numpy(
            np.stack([generator[i].to_dataarray().values for i in batch])
        )

    return map(read, in_batches(epoch_order(len(generator), 0, 0)))


def endpoint() -> dict[str, str]:
    """How clients of boto3 reach the server, with the delay."""
    server = connect()
    return {
        "endpoint_url": os.environ.get("EMBEDDED_S3_ENDPOINT")
        or server["AWS_ENDPOINT_URL"],
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
    with MDSWriter(
        out=folder, columns=columns, compression="zstd", size_limit="64mb"
    ) as writer:
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
