"""Windows of fields that stay in object storage: Zarr and xarray over fsspec, read on demand.

The samples are those of WindowDataset, to the bit, but the fields are never in memory.
"""

from collections.abc import Sequence
from typing import Any, Literal

import dask.array  # here, because xarray would import it while a store is opened
import numpy as np
import torch
from torch import Tensor

from src.data.fields import AXES, MissingChunks, open_fields
from src.data.pytorch_dataset import GridDataset, Split
from src.data.statistics import load_statistics
from src.data.store import OCEAN, open_store
from src.data.windows import Period, Window, WindowGrid, find_periods

# What reads the chunks of a batch: xarray alone, or dask in one thread, in many, on a cluster.
DaskMode = Literal["none", "single-threaded", "threads", "distributed"]


class CloudDataset(GridDataset):
    """Windows of a Zarr store, one for each position that the stride reaches.

    The store has to have statistics of the training period: build_store.py.

    Args:
        split: which period the windows are from.
        url: the store; s3://embedded/ocean.zarr is built when a training begins.
        variables: which of the store's variables; null takes all.
        levels: which values of the axis level; each makes a variable, such as temperature_500.
        window: time steps, latitudes and longitudes of a sample.
        train_stride: steps between neighbouring training windows; smaller steps give more windows.
        val_stride: the same for validation, and for the test.
        train_period: first and last date of the training, both inclusive.
        val_period: the same for validation; at least one window away.
        test_period: the same for a test that is scored once, after the training; null for none.
        wrap_longitude: windows may cross the grid's edge; null: if it goes round the globe.
        dask: what reads the chunks of a batch; with distributed, this process has a Client.
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
        test_period: Period | None = None,
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
        self.test_period = test_period
        # A loader's worker gets these pickled: how to open a store, but no connections or values.
        has_land = missing_chunks == "land"
        self.store = open_store(url, patience, anonymous, has_land=has_land)
        chunks: Any = None if dask == "none" else {}
        self.fields, self.stored = open_fields(self.store, variables, levels, chunks)
        self.variables = [str(name) for name in self.fields]
        self.units = [
            self.fields[name].attrs.get("units", "1") for name in self.variables
        ]

        periods = {"train": train_period, "val": val_period, "test": test_period}
        steps = find_periods(self.fields.indexes["time"], window, periods)
        if wrap_longitude is None:
            wrap_longitude = is_globe(self.fields["lon"].values)
        stride = train_stride if split == "train" else val_stride
        self.grid = WindowGrid(
            self.fields, window, stride, steps[split], wrap_longitude
        )

        # Statistics elsewhere may need keys.
        place = self.store
        if statistics_store:
            place = open_store(statistics_store, patience)
        self.mean, self.std = load_statistics(
            place, url, self.variables, train_period, steps["train"]
        )

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """The window, normalised, and its number."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """The samples of a batch, for which a DataLoader calls this: dask reads them together."""
        windows = [self.lazy_window(index) for index in indices]
        if self.dask != "none":
            windows = dask.compute(*windows, scheduler=self.dask)
        samples = []
        for index, window in zip(indices, windows, strict=True):
            # Packed integers may be float64 by now.
            values = np.stack(window).astype(np.float32)
            values -= self.mean[:, None, None, None]
            values /= self.std[:, None, None, None]
            samples.append((torch.from_numpy(values), index))
        return samples

    def lazy_window(self, index: int) -> list[Any]:
        """The window of each variable, (T, H, W); with dask, its values are not read yet."""
        time, rows, columns = self.grid.slices(index)
        places: Any = columns
        if columns.stop > len(self.grid.lon):
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


def is_globe(lon: np.ndarray) -> bool:
    """Whether these longitudes go round: after the last one comes the first."""
    number = len(lon)
    # With the step after the last one.
    width = np.ptp(lon) * number / max(1, number - 1)
    return bool(abs(width - 360) < 180 / number)
