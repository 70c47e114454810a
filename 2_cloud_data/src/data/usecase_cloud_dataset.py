"""Windows of fields that stay in object storage: Zarr and xarray over fsspec, read on demand."""

# The samples are those of WindowDataset, to the bit, but the fields are never in memory.

import math
from collections.abc import Sequence
from typing import Any, Literal

import dask
import numpy as np
import torch
import xarray as xr
from jsonargparse.typing import PositiveFloat
from torch import Tensor

from src.data.build import OCEAN, build_ocean
from src.data.pytorch_dataset import Months, Split, Window, WindowDataset, check_months
from src.data.statistics import read_statistics, statistics_url
from src.data.store import open_fields, open_store, select
from src.errors import UserError

DaskMode = Literal["none", "single-threaded", "threads"]


class CloudDataset(WindowDataset):
    """Windows of a Zarr store, one for each position that the stride reaches.

    A window that touches a month without any value is left out. "Months" are steps of the time
    axis, whatever their length. The store has to have statistics: build_store.py.

    Args:
        url: the store; s3://embedded/ocean.zarr is built when it is not there.
        variables: which of the store's variables; null takes all.
        window: months, latitudes and longitudes of a sample.
        train_stride: steps between neighbouring training windows; smaller steps give more windows.
        val_stride: the same for validation.
        train_months: first month and first month after the end of the training period.
        val_months: the same for validation; at least one window away from the training months.
        wrap_longitude: windows cross the grid's edge; null: if its longitudes go round the globe.
        dask: how the chunks of a batch are read: window by window with xarray alone (none), or
            with dask, in one thread or in many; on a cluster, if the process has a client.
        patience: seconds that a read may take, with all retries.
        anonymous: read public data, without credentials.
        statistics_store: where the statistics are, if not in the store.
    """

    def __init__(
        self,
        split: Split,
        url: str = OCEAN,
        variables: list[str] | None = None,
        window: Window = (12, 16, 32),
        train_stride: Window = (1, 1, 10),
        val_stride: Window = (12, 2, 16),
        train_months: Months = (0, 30),
        val_months: Months = (42, 54),
        wrap_longitude: bool | None = None,
        dask: DaskMode = "threads",
        patience: PositiveFloat = 60,
        anonymous: bool = False,
        statistics_store: str | None = None,
    ) -> None:
        # Without super().__init__(), which loads all fields into memory.
        if url == OCEAN:
            build_ocean(train_months)
        self.url, self.patience, self.anonymous = url, patience, anonymous
        self.statistics_url = statistics_url(statistics_store or url, train_months)
        self.dask, self.window = dask, window
        # A loader's worker gets these pickled: how to open a store, but no connections or values.
        self.lazy_fields, self.statistics = fields, statistics = self.open(variables)
        self.variables = [str(name) for name in fields]
        self.units = [fields[name].attrs.get("units", "1") for name in self.variables]
        self.mean, self.std = statistics["mean"].values, statistics["std"].values
        self.time, self.lat, self.lon = (
            fields[axis].values for axis in ("time", "lat", "lon")
        )
        self.month = fields["time"].dt.month.values - 1
        check_months(len(self.time), window[0], train_months, val_months)

        first, end = train_months if split == "train" else val_months
        stride = train_stride if split == "train" else val_stride
        has_values = statistics["has_values"].all("variable").values
        months = range(first, end - window[0] + 1, stride[0])
        if wrap_longitude is None:
            step = np.ptp(self.lon) / max(1, len(self.lon) - 1)
            wrap_longitude = bool(abs(step * len(self.lon) - 360) < step / 2)
        width = len(self.lon) if wrap_longitude else len(self.lon) - window[2] + 1
        self.axis_starts: tuple[Sequence[int], ...] = (
            [month for month in months if has_values[month : month + window[0]].all()],
            range(0, len(self.lat) - window[1] + 1, stride[1]),
            range(0, width, stride[2]),
        )
        if not len(self) or window[2] > len(self.lon):
            raise UserError(f"data.dataset: no window {window} with values in {url}")
        if wrap_longitude:
            self.lon = np.concatenate([self.lon, self.lon[: window[2] - 1] + 360])

    def open(self, names: list[str] | None) -> tuple[xr.Dataset, xr.Dataset]:
        """The fields and their statistics: names, shapes and coordinates, but no values yet."""
        store = open_store(self.url, self.patience, self.anonymous)
        fields = open_fields(store, chunks=None if self.dask == "none" else {})
        fields = select(fields, names, self.url)
        is_public = self.anonymous and self.statistics_url.startswith(self.url)
        statistics = open_store(self.statistics_url, self.patience, is_public)
        return fields, read_statistics(statistics, list(map(str, fields)))

    def __len__(self) -> int:
        return math.prod(map(len, self.axis_starts))

    def slices(self, index: int) -> tuple[slice, ...]:
        """The sample's place; its longitudes may go on beyond the edge of the grid."""
        # Computed for each sample: a list of all places would take gigabytes for a large store.
        numbers = np.unravel_index(index, [len(steps) for steps in self.axis_starts])
        starts = (
            axis[int(number)]
            for axis, number in zip(self.axis_starts, numbers, strict=True)
        )
        return tuple(
            slice(i, i + size) for i, size in zip(starts, self.window, strict=True)
        )

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    # A DataLoader asks for a whole batch with this: dask then reads its chunks together.
    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        windows = [self.lazy_window(index) for index in indices]
        if self.dask != "none":
            # A distributed.Client of this process has set the scheduler; then it takes the tasks.
            windows = dask.compute(
                *windows, scheduler=dask.config.get("scheduler", self.dask)
            )
        samples = []
        for index, window in zip(indices, windows, strict=True):
            values = np.stack([np.concatenate(parts, axis=-1) for parts in window])
            samples.append((torch.from_numpy(self.normalise(values)), index))
        return samples

    def lazy_window(self, index: int) -> list[list[Any]]:
        """For each variable the one or two parts of the window, side by side in longitude."""
        time, rows, columns = self.slices(index)
        width = self.lazy_fields.sizes["lon"]
        parts = [slice(columns.start, min(columns.stop, width))]
        if columns.stop > width:
            parts.append(slice(0, columns.stop - width))
        window = []
        for name in self.variables:
            variable = self.lazy_fields.variables[name]
            lazy = [variable[time, rows, part] for part in parts]
            # `values` reads now; `data` is an array of dask, which is read later, with the others.
            window.append([x.values if self.dask == "none" else x.data for x in lazy])
        return window

    def climatology(self, index: int) -> Tensor:
        t, y, x = self.slices(index)
        columns = np.arange(x.start, x.stop) % self.lazy_fields.sizes["lon"]
        monthly = self.statistics["climatology"][:, self.month[t], y, columns]
        return torch.from_numpy(self.normalise(monthly.values))
