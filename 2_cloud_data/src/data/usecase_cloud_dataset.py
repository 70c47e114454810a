"""Windows of fields that stay in object storage: Zarr and xarray over fsspec, read on demand.

The samples are those of WindowDataset, to the bit, but the fields are never in memory.
"""

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import dask.array
import numpy as np
import torch
import zarr
from torch import Tensor

from src.data.fields import AXES, MissingChunks, StoredField, open_fields
from src.data.pytorch_dataset import FieldDataset, Split
from src.data.statistics import load_statistics
from src.data.store import OCEAN, open_store
from src.data.windows import (
    Coordinates,
    Period,
    Window,
    WindowGrid,
    find_periods,
    is_globe,
)
from src.run.errors import UserError

# A damaged chunk, by its codec.
DECODING_ERRORS = (RuntimeError, ValueError, zlib.error)
DaskMode = Literal["none", "single-threaded", "threads"]


class CloudDataset(FieldDataset):
    """Windows of a Zarr store, one for each position that the stride reaches.

    The store has to have statistics of the training period: build_store.py.

    Args:
        url: the store; s3://embedded/ocean.zarr is built when a training begins.
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
        statistics_store: the folder of the statistics, if they are not in the store.
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
        patience: float = 60,
        anonymous: bool = False,
        statistics_store: str | None = None,
        missing_chunks: MissingChunks = "error",
    ) -> None:
        self.url = url
        self.patience = patience
        self.anonymous = anonymous
        self.dask = dask
        # A loader's worker gets these pickled: how to open a store, but no connections or values.
        has_land = missing_chunks == "land"
        self.store = open_store(url, patience, anonymous, has_land=has_land)
        chunks = None if dask == "none" else {}
        self.fields, self.stored = open_fields(self.store, variables, levels, chunks)
        self.variables = [str(name) for name in self.fields]
        self.units = []
        for name in self.variables:
            self.units.append(self.fields[name].attrs.get("units", "1"))

        time = self.fields.indexes["time"]
        train, val = find_periods(time, window, train_period, val_period)
        if wrap_longitude is None:
            wrap_longitude = is_globe(self.fields)
        period = train if split == "train" else val
        stride = train_stride if split == "train" else val_stride
        self.grid = WindowGrid(self.fields, window, stride, period, wrap_longitude)

        # Statistics elsewhere may need keys.
        place = self.store
        if statistics_store:
            place = open_store(statistics_store, patience)
        self.mean, self.std = load_statistics(
            place, url, self.variables, train_period, train.stop - train.start
        )

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
            self.check_chunks(indices)
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
            variable = self.fields.variables[name]
            part = variable.isel(time=time, lat=rows, lon=places)
            if self.dask == "none":
                # Read first, in the order of the store: a lazy array is slow once transposed.
                part = part.load()
            # With dask `data` is an array that is read later, together with the others.
            window.append(part.transpose(*AXES).data)
        return window

    def check_chunks(self, indices: Sequence[int]) -> None:
        """Raise UserError for the first damaged chunk of these windows: zarr does not name it."""
        for field in self.stored:
            array = zarr.open_array(self.store, path=field.array, mode="r")
            for index in indices:
                for place in self.chunk_places(field, index):
                    try:
                        array.blocks[place]
                    except DECODING_ERRORS as error:
                        key = f"{field.array}/{array.metadata.encode_chunk_key(place)}"
                        text = f"chunk {key} is damaged: {error}"
                        raise UserError(f"{self.url}: {text}") from error

    def chunk_places(
        self, field: StoredField, index: int
    ) -> Iterator[tuple[int, ...]]:
        """The number of each chunk that a window touches, along the axes of the array."""
        time, rows, _ = self.grid.slices(index)
        places = {
            "time": np.arange(time.start, time.stop),
            "lat": np.arange(rows.start, rows.stop),
            "lon": self.grid.columns(index),
            "level": np.array([field.level or 0]),
        }
        numbers = []
        for axis, size in field.chunk.items():
            numbers.append(np.unique(places[axis] // size).tolist())
        return itertools.product(*numbers)
