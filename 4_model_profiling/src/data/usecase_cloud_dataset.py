"""Windows of fields that stay in object storage: Zarr and xarray over fsspec, read on demand."""

# The samples are those of WindowDataset, to the bit, but the fields are never in memory. Windows
# with a time step at which a variable has no value at all are left out here, and not there.

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import dask.array
import numpy as np
import torch
import xarray as xr
from jsonargparse.typing import PositiveFloat
from torch import Tensor

from src.data.build import OCEAN, build_ocean
from src.data.checked_store import CheckedStore
from src.data.chunks import check_chunks
from src.data.pytorch_dataset import FieldDataset, Split
from src.data.statistics import (
    CLIMATOLOGY,
    check_dates,
    open_statistics,
    statistics_url,
)
from src.data.store import (
    AXES,
    DECODING_ERRORS,
    MissingChunks,
    open_fields,
    open_store,
    select,
)
from src.data.windows import (
    Coordinates,
    Period,
    Window,
    WindowGrid,
    find_periods,
    has_degrees,
)
from src.run.errors import UserError

DaskMode = Literal["none", "single-threaded", "threads"]


class CloudDataset(FieldDataset):
    """Windows of a Zarr store, one for each position that the stride reaches.

    A window with a time step at which a variable has no value anywhere on the grid is left out. One
    that lies wholly on land stays. The store has to have statistics: build_store.py.

    Args:
        url: the store; s3://embedded/ocean.zarr is built when it is not there.
        variables: which of the store's variables; null takes all.
        levels: which values of the axis level; each makes a variable, such as temperature_500.
        window: time steps, latitudes and longitudes of a sample.
        train_stride: steps between neighbouring training windows; smaller steps give more windows.
        val_stride: the same for validation.
        train_period: first and last date of the training, both inclusive.
        val_period: the same for validation; at least one window away.
        wrap_longitude: windows cross the grid's edge; null: if its longitudes go round the globe.
        dask: how the chunks of a batch are read: window by window with xarray alone (none), or
            with dask, in one thread or in many; on a cluster, if the process has a client.
        patience: seconds that a read may take, with all retries.
        anonymous: read public data, without credentials.
        statistics_store: where the statistics are, if not in the store.
        missing_chunks: whether a chunk that is not there was lost (error), or is land.
    """

    def __init__(
        self,
        split: Split,
        url: str = OCEAN,
        variables: list[str] | None = None,
        levels: list[float] | None = None,
        window: Window = (12, 16, 32),
        train_stride: Window = (1, 1, 10),
        val_stride: Window = (12, 2, 16),
        train_period: Period = ("2006-04", "2008-09"),
        val_period: Period = ("2009-10", "2010-09"),
        wrap_longitude: bool | None = None,
        dask: DaskMode = "threads",
        patience: PositiveFloat = 60,
        anonymous: bool = False,
        statistics_store: str | None = None,
        missing_chunks: MissingChunks = "error",
    ) -> None:
        if url == OCEAN:
            build_ocean(url, train_period, patience)
        self.url, self.patience, self.anonymous = url, patience, anonymous
        self.statistics_url = statistics_url(statistics_store or url, train_period)
        # Statistics elsewhere may need keys.
        self.has_public_statistics = anonymous and not statistics_store
        self.dask = dask
        self.missing_chunks = missing_chunks
        # A loader's worker gets these pickled: how to open a store, but no connections or values.
        fields, statistics = self.open(split, variables, levels)
        self.lazy_fields = fields
        self.statistics = statistics
        self.variables = [str(name) for name in fields]
        self.units = []
        for name in self.variables:
            self.units.append(fields[name].attrs.get("units", "1"))
        self.mean = np.stack([each["mean"].values for each in statistics])
        self.std = np.stack([each["std"].values for each in statistics])

        time = fields.indexes["time"]
        train, val = find_periods(time, window, train_period, val_period)
        check_dates(time, train)
        check_dates(time, val)
        period = train if split == "train" else val
        stride = train_stride if split == "train" else val_stride
        if wrap_longitude is None:
            lon = fields["lon"].values
            step = np.ptp(lon) / max(1, len(lon) - 1)
            is_globe = abs(step * len(lon) - 360) < step / 2
            wrap_longitude = bool(is_globe) and has_degrees(fields, "lon")
        self.grid = WindowGrid(fields, window, stride, period, wrap_longitude)
        # Leave out windows that touch a time step without any value.
        has_values = np.all([each["has_values"] for each in statistics], axis=0)
        steps, rows, columns = self.grid.starts
        whole = []
        for step in steps:
            if has_values[step : step + window[0]].all():
                whole.append(step)
        self.grid.starts = (whole, rows, columns)
        if not len(self):
            raise UserError(f"data.dataset: no window {window} with values in {url}")

    def open(
        self, split: Split, names: list[str] | None, levels: list[float] | None
    ) -> tuple[xr.Dataset, list[xr.Dataset]]:
        """The fields and the statistics of each: shapes and coordinates, but no fields' values."""
        self.store = open_store(self.url, self.patience, self.anonymous)
        fields = open_fields(self.store, chunks=None if self.dask == "none" else {})
        fields = select(fields, names, self.url, levels)
        if self.missing_chunks == "land":
            self.store.allow_land(fields)

        def open_one(store: CheckedStore) -> xr.Dataset:
            statistics = open_statistics(store, fields, self.url)
            if split == "val":  # for which the climatology is a baseline
                check_chunks(store, CLIMATOLOGY)
            return statistics

        # Opened in this thread: fsspec has a session for each thread, which takes long to make.
        stores = []
        for name in fields:
            place = f"{self.statistics_url}/{name}"
            store = open_store(place, self.patience, self.has_public_statistics)
            stores.append(store)
        # Side by side: each waits for its store several times.
        with ThreadPoolExecutor() as threads:
            return fields, list(threads.map(open_one, stores))

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.grid)

    def coordinates(self, index: int) -> Coordinates:
        """Dates, latitudes and longitudes of a window."""
        return self.grid.coordinates(index)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """A batch, for which a DataLoader calls this: dask reads its chunks together.

        Raises UserError for a chunk that is lost or damaged.
        """
        try:
            windows = [self.lazy_window(index) for index in indices]
            if self.dask != "none":
                # A distributed.Client of this process takes the tasks, and has set this. Nothing
                # else overrules the parameter, such as the user's own configuration of dask.
                has_client = dask.config.get("scheduler", None) == "dask.distributed"
                scheduler = "dask.distributed" if has_client else self.dask
                windows = dask.compute(*windows, scheduler=scheduler)
        except DECODING_ERRORS:
            # The error does not say which chunk it was.
            check_chunks(self.store, itertools.chain(*map(self.stored_parts, indices)))
            raise
        samples = []
        for index, window in zip(indices, windows, strict=True):
            values = np.stack(window)
            values = values.astype(np.float32)  # packed integers may be float64 by now
            samples.append((torch.from_numpy(self.normalise(values)), index))
        return samples

    def lazy_window(self, index: int) -> list[Any]:
        """The window of each variable, (T, H, W); with dask, its values are not read yet."""
        time, rows, columns = self.grid.slices(index)
        places: Any = columns
        if columns.stop > self.grid.width:
            places = self.grid.columns(index)  # the last ones, then the first
        window = []
        for name in self.variables:
            variable = self.lazy_fields.variables[name]
            part = variable.isel(time=time, lat=rows, lon=places)
            if self.dask == "none":
                # Read first, in the order of the store: a lazy array is slow once transposed.
                part = part.load()
            # With dask `data` is an array that is read later, together with the others.
            window.append(part.transpose(*AXES).data)
        return window

    def stored_parts(self, index: int) -> list[tuple[str, list[slice]]]:
        """A window's arrays, and which part of each, along the axes that it has in the store."""
        parts = []
        for name in self.variables:
            encoding = self.lazy_fields[name].encoding
            level = encoding["level"]
            region = dict(zip(AXES, self.grid.slices(index), strict=True))
            if level is not None:
                region["level"] = slice(level, level + 1)
            part = [region[axis] for axis in encoding["axes"]]
            parts.append((encoding["array"], part))
        return parts

    def climatology(self, index: int) -> Tensor:
        """(V, T, H, W), normalised: the training period's mean for this place and time of year."""
        time, rows, _ = self.grid.slices(index)
        months = self.grid.month[time]
        columns = self.grid.columns(index)
        monthly = []
        for statistics in self.statistics:
            monthly.append(statistics["climatology"][months, rows, columns].values)
        return torch.from_numpy(self.normalise(np.stack(monthly)))
