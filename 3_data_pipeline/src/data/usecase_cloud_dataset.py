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
from src.data.pytorch_dataset import FieldDataset, Split
from src.data.statistics import (
    CLIMATOLOGY,
    check_dates,
    check_source,
    of_variables,
    open_statistics,
    statistics_url,
)
from src.data.store import (
    AXES,
    DECODING_ERRORS,
    MissingChunks,
    check_chunks,
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
from src.errors import UserError

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
        missing_chunks: what it means that the store has no such chunk: that it was lost, or land.
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
            build_ocean(train_period)
        self.url, self.patience, self.anonymous = url, patience, anonymous
        self.statistics_url = statistics_url(statistics_store or url, train_period)
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
        self.mean = statistics["mean"].values
        self.std = statistics["std"].values

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
        has_values = statistics["has_values"].all("variable").values
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
    ) -> tuple[xr.Dataset, xr.Dataset]:
        """The fields and their statistics: names, shapes and coordinates, but no values yet."""
        self.store = open_store(self.url, self.patience, self.anonymous)
        # Statistics elsewhere, even at a name that begins alike, may need keys.
        is_inside = self.statistics_url.startswith(f"{self.url}/")
        is_public = self.anonymous and is_inside
        statistics_store = open_store(self.statistics_url, self.patience, is_public)
        # Side by side: each waits for its store several times.
        with ThreadPoolExecutor(1) as thread:
            opening = thread.submit(open_statistics, statistics_store)
            fields = open_fields(self.store, chunks=None if self.dask == "none" else {})
        fields = select(fields, names, self.url, levels)
        if self.missing_chunks == "land":
            self.store.allow_land(fields)
        statistics = of_variables(
            opening.result(), list(map(str, fields)), self.statistics_url
        )
        check_source(statistics, fields, self.url, self.statistics_url)
        if split == "val":  # for which the climatology is a baseline
            check_chunks(statistics_store, CLIMATOLOGY)
        return fields, statistics

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
            fields = [np.concatenate(parts, axis=-1) for parts in window]
            values = np.stack(fields)
            values = values.astype(np.float32)  # packed integers may be float64 by now
            samples.append((torch.from_numpy(self.normalise(values)), index))
        return samples

    def lazy_window(self, index: int) -> list[list[Any]]:
        """For each variable the one or two parts of the window, side by side in longitude."""
        time, rows, columns = self.grid.slices(index)
        width = self.grid.width
        parts = [slice(columns.start, min(columns.stop, width))]
        if columns.stop > width:
            parts.append(slice(0, columns.stop - width))
        window = []
        for name in self.variables:
            variable = self.lazy_fields.variables[name]
            lazy = []
            for part in parts:
                lazy.append(variable.isel(time=time, lat=rows, lon=part))
            if self.dask == "none":
                # Read first, in the order of the store: a lazy array is slow once transposed.
                lazy = [part.load() for part in lazy]
            # With dask `data` is an array that is read later, together with the others.
            window.append([part.transpose(*AXES).data for part in lazy])
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
        monthly = self.statistics["climatology"]
        months = self.grid.month[time]
        columns = self.grid.columns(index)
        values = monthly[:, months, rows, columns]
        return torch.from_numpy(self.normalise(values.values))
