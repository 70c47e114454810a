"""One function for each reader: a whole epoch of the task's samples, in random order, in batches.

Each takes the task and its own settings, and imports what it needs by itself, so that the process
of one reader holds nothing of the others. What comes out is a tensor (B, V, T, H, W), normalised;
The settings, and where the advice
for them comes from, are in catalogue.py.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from peers.raw import PACKED
from peers.task import Collate, Task, fsspec_options, order, server
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


def loader(
    dataset: Dataset, task: Task, num_workers: int, collate: Any, prefetch_factor: int = 2
) -> DataLoader:
    """A DataLoader in random order; workers are started as the chapter starts them."""
    from src.data.loader_settings import worker_settings

    return DataLoader(
        dataset,
        batch_size=task.batch_size,
        sampler=order(task),
        collate_fn=collate,
        num_workers=num_workers,
        **worker_settings(num_workers, False, prefetch_factor, "forkserver"),
    )


def fast_dataset(task: Task, batches_ahead: int, concurrency: int) -> Iterator[Tensor]:
    """This chapter's reader, as its training uses it."""
    from src.data.fast_dataset import FastDataset
    from src.data.look_ahead import batches_of

    dataset = FastDataset(
        "train",
        **task.dataset_args(),
        packed=True,
        batches_ahead=batches_ahead,
        concurrency=concurrency,
    )
    batches = batches_of(order(task), task.batch_size, dataset, 0, drop_last=False)  # type: ignore[arg-type]
    for x, _ in DataLoader(dataset, **batches):
        yield x


def chunk_stream(task: Task, packed: str, batches_ahead: int, concurrency: int) -> Iterator[Tensor]:
    """This chapter's stream, which reads every chunk once and shuffles what it has."""
    from src.data.chunk_stream import ChunkStream
    from src.data.look_ahead import batches_of

    dataset = ChunkStream(
        "train",
        packed=packed,
        batches_ahead=batches_ahead,
        concurrency=concurrency,
        **task.dataset_args(),
    )
    own_order = dataset.epoch_order(task.seed, 0)
    batches = batches_of(own_order, task.batch_size, dataset, 0, drop_last=False)
    for x, _ in DataLoader(dataset, **batches):
        yield x


class DaskWindows(Dataset):
    """Windows of an xarray.Dataset over dask, one at a time, as one would write it oneself."""

    def __init__(self, task: Task, dask_threads: int) -> None:
        self.task, self.dask_threads = task, dask_threads
        self.fields: Any = None  # each process opens it for itself

    def __len__(self) -> int:
        return len(self.task.starts)

    def __getitem__(self, index: int) -> np.ndarray:
        if self.fields is None:
            self.fields = open_with_dask(self.task, self.dask_threads)
        window = self.fields.isel(dict(zip(("time", "lat", "lon"), self.task.place(index))))  # noqa: B905
        return stack_variables(self.task, window.compute())


def open_with_dask(task: Task, dask_threads: int) -> Any:
    """The task's variables as dask arrays with the chunks of the store."""
    import dask
    import xarray as xr

    dask.config.set(scheduler="threads", num_workers=dask_threads)
    fields = xr.open_zarr(
        task.url, chunks={}, consolidated=False, storage_options=fsspec_options(task.url) or None
    )
    return fields[task.variables].isel(time=slice(*task.train_months))


def stack_variables(task: Task, window: Any) -> np.ndarray:
    """(V, T, H, W) from a Dataset that is in memory."""
    return np.stack([window[name].values for name in task.variables])


def xarray_dask(task: Task, num_workers: int, dask_threads: int) -> Iterator[Tensor]:
    """Plain xarray over dask, a sample at a time."""
    yield from loader(
        DaskWindows(task, dask_threads), task, num_workers, Collate(task.mean, task.std)
    )


class Xbatches(Dataset):
    """xbatcher's adapter for PyTorch, opened by each process for itself."""

    def __init__(self, task: Task, dask_threads: int, preload: bool) -> None:
        self.task, self.dask_threads, self.preload = task, dask_threads, preload
        self.adapter: Any = None

    def __len__(self) -> int:
        return len(self.task.starts)

    def __getitem__(self, index: int) -> Tensor:
        if self.adapter is None:
            self.adapter = self.open()
        return self.adapter[index]

    def open(self) -> Any:
        from xbatcher import BatchGenerator
        from xbatcher.loaders.torch import MapDataset

        generator = BatchGenerator(
            open_with_dask(self.task, self.dask_threads),
            input_dims=dict(zip(("time", "lat", "lon"), self.task.window, strict=True)),
            preload_batch=self.preload,
        )
        return MapDataset(
            generator, transform=lambda ds: torch.from_numpy(stack_variables(self.task, ds))
        )


def xbatcher(
    task: Task, num_workers: int, dask_threads: int, preload: bool, prefetch_factor: int
) -> Iterator[Tensor]:
    """Xbatcher's MapDataset over xarray and dask."""
    dataset = Xbatches(task, dask_threads, preload)
    yield from loader(
        dataset, task, num_workers, Collate(task.mean, task.std), prefetch_factor=prefetch_factor
    )


class ZarrWindows(Dataset):
    """Windows of the packed array through zarr's asynchronous interface, a batch at once."""

    def __init__(self, task: Task, backend: str) -> None:
        self.task, self.backend = task, backend
        self.array: Any = None

    def __len__(self) -> int:
        return len(self.task.starts)

    def __getitems__(self, indices: Sequence[int]) -> list[np.ndarray]:
        from zarr.core.sync import sync

        if self.array is None:
            self.array = sync(self.open())

        async def read() -> list[np.ndarray]:
            places = [(slice(None), *self.task.place(index)) for index in indices]
            return await asyncio.gather(*(self.array.getitem(place) for place in places))

        return sync(read())

    async def open(self) -> Any:
        import zarr

        store = zarr_store(self.task.url, self.backend)
        return await zarr.api.asynchronous.open_array(store=store, path=PACKED, mode="r")


def zarr_store(url: str, backend: str) -> Any:
    """The store of a URL: through s3fs, or through obstore."""
    from zarr.storage import FsspecStore, LocalStore, ObjectStore

    if not (own := server(url)):
        return LocalStore(url, read_only=True)
    if backend == "s3fs":
        return FsspecStore.from_url(url, storage_options=fsspec_options(url), read_only=True)
    from obstore.store import S3Store

    store = S3Store(
        urlsplit(url).netloc,
        prefix=urlsplit(url).path.lstrip("/"),
        endpoint=own["endpoint"],
        access_key_id=own["key"],
        secret_access_key=own["secret"],
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return ObjectStore(store, read_only=True)


def zarr_alone(task: Task, num_workers: int, backend: str) -> Iterator[Tensor]:
    """zarr-python over the packed copy: the requests of a batch at the same time."""
    dataset = ZarrWindows(task, backend)
    yield from loader(dataset, task, num_workers, Collate(task.mean, task.std))
