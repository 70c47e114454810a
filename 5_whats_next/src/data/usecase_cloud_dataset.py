"""Windows of fields that stay where they are: xarray over Zarr over fsspec, read when asked for.

The samples are those of ``WindowDataset``, to the bit, but the fields are never in memory.

Shapes: V variables, T months, H latitudes, W longitudes.
"""

import math
import os
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils.data import get_worker_info

from src.data.cloud_build import provide_ocean
from src.data.cloud_dask import DaskMode, compute_with, start_cluster
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import (
    broken_chunk,
    check_longitudes,
    choose_variables,
    open_for_training,
    region_of,
    step_numbers,
)
from src.data.cloud_statistics import read_statistics
from src.data.cloud_store import COUNTERS, CheckedStore, open_store
from src.data.pytorch_dataset import Coordinates, FieldDataset, Split
from src.data.statistics import check_months, normalise
from src.errors import UserError

MAX_WORKERS = 256
Place = tuple[slice, slice, slice]


class Opened(NamedTuple):
    """What one process has open."""

    process: int
    fields: xr.Dataset
    origin: tuple[int, int, int]  # where its first element is in the store
    statistics: xr.Dataset
    compute: Callable[..., Sequence[Any]]


class CloudDataset(FieldDataset):
    """Windows of the variables of a Zarr store, one sample for each position the stride reaches.

    Windows that touch a missing month are left out: one that the calendar skips, or one without a
    valid value. The store has to have statistics of the training months; ``build_store.py`` makes
    them.

    Args:
        split: which months the windows come from.
        url: the store. s3://embedded/ocean.zarr is made when it is not there; any other, on S3,
            GCS, https or a local path, has to be.
        variables: which of the store's variables; null takes all, in order of the alphabet.
        window: months, latitudes and longitudes of a sample.
        train_stride: steps between neighbouring training windows; smaller steps give more windows.
        val_stride: the same for validation.
        train_months: first month and first month after the end of the training period.
        val_months: the same for validation; at least one window away from the training months.
        wrap_longitude: the grid goes round the globe, so windows may cross its edge.
        region: south, north, west, east that the windows lie between, in degrees; null: everywhere.
        dask: none reads with xarray alone; the others with dask in threads, or in processes.
        dask_threads: how many threads dask has.
        statistics_url: where the statistics are, if not in the store.
        anonymous: ask for public data without credentials.
        patience: seconds to go on trying when a request fails.
    """

    def __init__(
        self,
        split: Split,
        url: str = "s3://embedded/ocean.zarr",
        variables: list[str] | None = None,
        window: tuple[int, int, int] = (12, 16, 32),
        train_stride: tuple[int, int, int] = (1, 1, 10),
        val_stride: tuple[int, int, int] = (12, 2, 16),
        train_months: tuple[int, int] = (0, 30),
        val_months: tuple[int, int] = (42, 54),
        wrap_longitude: bool = True,
        region: tuple[float, float, float, float] | None = None,
        dask: DaskMode = "none",
        dask_threads: int = 4,
        statistics_url: str | None = None,
        anonymous: bool = False,
        patience: float = 60.0,
    ) -> None:
        stride = train_stride if split == "train" else val_stride
        if min(*window, *stride) < 1:
            raise UserError(
                f"data.dataset: window {list(window)} and stride {list(stride)} must be at least 1"
            )
        provide_ocean(url, train_months)
        self.url, self.statistics_url = url, statistics_url or url
        self.wanted, self.window, self.train_months = variables, window, train_months
        self.anonymous, self.patience, self.region = anonymous, patience, region
        self.dask, self.dask_threads = dask, dask_threads
        self.cluster = start_cluster(dask_threads) if dask == "cluster" else ""
        # In shared memory, with a row for each worker, so that this process sees their counts.
        self.counts = torch.zeros(1 + MAX_WORKERS, len(COUNTERS), dtype=torch.int64).share_memory_()

        self._opened: Opened | None = None
        fields, statistics = self.opened.fields, self.opened.statistics
        self.variables = [str(name) for name in fields.data_vars]
        self.units = [fields[name].attrs.get("units", "1") for name in self.variables]
        self.time, self.lat, self.lon = (fields[axis].values for axis in ("time", "lat", "lon"))
        # xarray's own accessors and reductions import dask first, which takes half a second.
        self.calendar_month = self.time.astype("datetime64[M]").astype(int) % 12
        self.mean, self.std = (statistics[n].values.astype(np.float32) for n in ("mean", "std"))
        check_months(len(self.time), window[0], train_months, val_months)
        if wrap_longitude:
            check_longitudes(self.lon, url)
        self.steps = self.positions(
            train_months if split == "train" else val_months, stride, wrap_longitude
        )
        if wrap_longitude:
            self.lon = np.concatenate([self.lon, self.lon[: window[2] - 1] + 360.0])

    def positions(
        self, months: tuple[int, int], stride: Sequence[int], wrap: bool
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """First months, latitudes, longitudes of the windows. Raises UserError if there is none."""
        length, height, width = self.window
        missing = np.logical_not(self.opened.statistics["has_values"].values.all(axis=0))
        number = step_numbers(self.time)
        extent = [months[1] - months[0], len(self.lat), len(self.lon)]
        if any(size > room for size, room in zip(self.window, extent, strict=True)):
            raise UserError(
                f"data.dataset.window: {list(self.window)} (months, lat, lon) is larger than the "
                f"field; allowed: up to {extent}"
            )
        whole = [
            t
            for t in range(months[0], months[1] - length + 1, stride[0])
            if number[t + length - 1] - number[t] == length - 1
            and not missing[t : t + length].any()
        ]
        if not whole:
            raise UserError(
                f"data.dataset: no {length} months in a row of {self.url} from {months[0]} to "
                f"{months[1]} have valid values of {', '.join(self.variables)}"
            )
        last = len(self.lon) if wrap else len(self.lon) - width + 1
        return whole, range(0, len(self.lat) - height + 1, stride[1]), range(0, last, stride[2])

    @property
    def opened(self) -> Opened:
        """The store, opened in this process when it is first needed.

        A worker opens it for itself: the connections and threads of another process are no use.
        """
        if self._opened and self._opened.process != os.getpid():
            raise CloudError(  # a worker that was not forked has not inherited it
                "data.multiprocessing_context: fork hangs once a store is open; allowed: "
                "forkserver, spawn"
            )
        if self._opened is None:
            worker = get_worker_info()
            row = self.counts[1 + worker.id % MAX_WORKERS if worker else 0].numpy()
            settings = {"anonymous": self.anonymous, "patience": self.patience, "counts": row}
            store = self.store(self.url, **settings)
            fields = open_for_training(store, self.dask != "none")
            fields = fields[choose_variables(fields, self.wanted, self.url)]
            rows, columns = region_of(fields, self.region)
            fields = fields.isel(lat=rows, lon=columns)
            place = store if self.statistics_url == self.url else self.store(self.statistics_url)
            statistics = read_statistics(place, fields, self.train_months, self.url)
            compute = compute_with(self.dask, self.dask_threads, self.cluster)
            origin = (0, rows.start, columns.start)
            self._opened = Opened(os.getpid(), fields, origin, statistics, compute)
        return self._opened

    def store(self, url: str, **settings: Any) -> CheckedStore:
        """Open the data, or the statistics; another reader may do it in another way."""
        return open_store(url, **settings)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @property
    def starts(self) -> list[tuple[int, int, int]]:
        """First month, latitude and longitude of every window."""
        return list(product(*self.steps))

    def __len__(self) -> int:
        return math.prod(map(len, self.steps))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """A whole batch, which a DataLoader asks for at once: dask reads its chunks together."""
        try:
            lazies = [self.lazy_window(index) for index in indices]
            samples = lazies if self.dask == "none" else self.opened.compute(lazies)
        except (RuntimeError, ValueError) as error:  # the decoders'
            store = open_store(self.url, self.anonymous, self.patience)
            places = [self.slices(index, self.opened.origin) for index in indices]
            if found := broken_chunk(store, self.variables, places):
                raise CloudError(f"{self.url}: {found}") from error
            raise
        return [
            (torch.from_numpy(normalise(stack(sample), self.mean, self.std)), index)
            for sample, index in zip(samples, indices, strict=True)
        ]

    def lazy_window(self, index: int) -> list[list[Any]]:
        """For each variable the one or two parts of the window, side by side in longitude."""
        time, rows, columns = self.slices(index)
        width = self.opened.fields.sizes["lon"]
        parts = [slice(columns.start, min(columns.stop, width))]
        if columns.stop > width:
            parts.append(slice(0, columns.stop - width))
        variables = [self.opened.fields.variables[name] for name in self.variables]
        if self.dask == "none":
            return [[variable[time, rows, part].values for part in parts] for variable in variables]
        return [[variable[time, rows, part].data for part in parts] for variable in variables]

    def slices(self, index: int, origin: Sequence[int] = (0, 0, 0)) -> Place:
        """The sample's place; its longitudes may go on beyond the edge of the grid."""
        # All combinations in one list would take gigabytes for a large store.
        place = np.unravel_index(index, [len(steps) for steps in self.steps])
        starts = (o + steps[int(i)] for o, steps, i in zip(origin, self.steps, place, strict=True))
        pairs = zip(starts, self.window, strict=True)
        t, y, x = (slice(start, start + size) for start, size in pairs)
        return t, y, x

    def coordinates(self, index: int) -> Coordinates:
        t, y, x = self.slices(index)
        return Coordinates(self.time[t], self.lat[y], self.lon[x])

    def climatology(self, index: int) -> Tensor:
        time, rows, columns = self.slices(index)
        width = self.opened.fields.sizes["lon"]
        place = np.arange(columns.start, columns.stop) % width
        monthly = self.opened.statistics["climatology"][:, self.calendar_month[time], rows, place]
        return torch.from_numpy(normalise(monthly.values, self.mean, self.std))


def stack(parts: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """(V, T, H, W) float32 from the parts of each variable."""
    return np.stack([np.concatenate(part, axis=-1) for part in parts]).astype(np.float32)
