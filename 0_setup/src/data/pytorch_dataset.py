"""Datasets of gridded fields: windows of any xarray dataset, real ocean data, random numbers.

A sample is (x, index): x float32 (V, T, H, W), normalised, NaN where there is no value (land or a
gap); index its number. V variables, T time steps, H latitudes, W longitudes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import iris_sample_data
import numpy as np
import torch
import xarray as xr
from jsonargparse.typing import PositiveInt
from torch import Tensor
from torch.utils.data import Dataset

from src.data.windows import Coordinates, Period, Window, WindowGrid, find_periods
from src.run.errors import UserError

Split = Literal["train", "val"]
# Variables, time steps, latitudes, longitudes.
Shape = tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt]


class FieldDataset(Dataset):
    """What the train scripts ask of a dataset: four attributes, a length, samples."""

    variables: Sequence[str]
    units: Sequence[str]
    mean: np.ndarray  # (V,); with std it turns a normalised sample back into units
    std: np.ndarray

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """(V, T, H, W) of every sample."""
        return tuple(self[0][0].shape)

    def normalise(self, fields: np.ndarray) -> np.ndarray:
        """Fields (V, T, H, W) with mean 0 and standard deviation 1."""
        return (fields - self.mean[:, None, None, None]) / self.std[:, None, None, None]

    def __len__(self) -> int:
        """The number of samples."""
        raise NotImplementedError

    def coordinates(self, index: int) -> Coordinates:
        """Dates, latitudes and longitudes for a picture; samples without a place lie in a row."""
        _, num_times, height, width = self.sample_shape
        lon = np.arange(width) + index * (width + 1)
        dates = np.full(num_times, "no date")
        return dates, np.arange(height)[::-1], lon


class WindowDataset(FieldDataset):
    """Windows of fields that fit into memory, one for each position that the stride reaches.

    Args:
        fields: variables over (time, lat, lon), NaN for no value; time as dates.
        split: which period the windows are from.
        window: time steps, latitudes and longitudes of a sample.
        stride: steps between the starts of neighbouring windows.
        train_period: first and last date of the training, both inclusive.
        val_period: the same for validation; at least one window away.
        wrap_longitude: the grid goes round the globe: windows may cross its edge.
    """

    def __init__(
        self,
        fields: xr.Dataset,
        split: Split,
        window: Window,
        stride: Window,
        train_period: Period,
        val_period: Period,
        wrap_longitude: bool = False,
    ) -> None:
        train, val = find_periods(
            fields.indexes["time"], window, train_period, val_period
        )
        period = train if split == "train" else val
        own = fields.isel(time=period)
        every_step = slice(0, own.sizes["time"])
        self.grid = WindowGrid(own, window, stride, every_step, wrap_longitude)
        self.variables = [str(name) for name in fields]
        self.units = [fields[name].attrs.get("units", "1") for name in self.variables]

        # Statistics come from the training period alone: anything else would tell the model about
        # the months that it is tested on.
        values = fields.to_dataarray().transpose("variable", "time", "lat", "lon")
        values = values.astype("float32")
        train_values = values.isel(time=train)
        self.mean, self.std = statistics(train_values)
        # (V, 12, H, W); a calendar month without training data has no climatology: NaN.
        monthly = train_values.groupby("time.month").mean().reindex(month=range(1, 13))
        monthly = monthly.transpose("variable", "month", "lat", "lon")

        self.fields = self.normalise(values.isel(time=period).values)
        self.monthly_mean = self.normalise(monthly.values)

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.grid)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """The window, normalised, and its number."""
        time, lat, _ = self.grid.slices(index)
        x = self.fields[:, time, lat][..., self.grid.columns(index)]
        return torch.from_numpy(x), index

    def coordinates(self, index: int) -> Coordinates:
        """Dates, latitudes and longitudes of a window."""
        return self.grid.coordinates(index)

    def climatology(self, index: int) -> Tensor:
        """(V, T, H, W), normalised: the training period's mean for this place and time of year."""
        time, lat, _ = self.grid.slices(index)
        months = self.monthly_mean[:, self.grid.month[time], lat]
        return torch.from_numpy(months[..., self.grid.columns(index)])


def statistics(train: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (V,) of the valid values of ``train`` (V, T, H, W).

    Raises:
        UserError: a variable has no values, always the same one, or an infinite one.
    """
    # float64: a float32 sum over millions of temperatures near 300 K loses the digits that matter.
    train = train.astype(np.float64)
    axes = ("time", "lat", "lon")
    mean = train.mean(axes).values
    std = train.std(axes).values
    # An infinite value makes both NaN, and then all samples: everything would count as land.
    if not (np.isfinite(std) & (std > 0)).all():
        raise UserError(
            f"data.dataset: standard deviation {std} of {train['variable'].values}"
        )
    return mean.astype(np.float32), std.astype(np.float32)


def ocean_fields() -> xr.Dataset:
    """The fields of OceanDataset, over (time, lat, lon)."""
    fields = xr.load_dataset(Path(iris_sample_data.path) / "ostia_monthly.nc")
    return fields[["surface_temperature"]].rename(latitude="lat", longitude="lon")


class OceanDataset(WindowDataset):
    """Real sea-surface temperature: OSTIA, monthly, April 2006 to September 2010, 5°S to 5°N, in K.

    Source: package iris-sample-data (British Crown copyright, Open Government Licence).

    Args:
        window: months, latitudes and longitudes of a sample.
        train_stride: steps between neighbouring training windows; smaller steps give more windows.
        val_stride: the same for validation.
        train_period: first and last month of the training, both inclusive.
        val_period: the same for validation; at least one window away.
    """

    def __init__(
        self,
        split: Split,
        window: Window = (12, 16, 32),
        train_stride: Window = (1, 1, 10),
        val_stride: Window = (12, 2, 16),
        train_period: Period = ("2006-04", "2008-09"),
        val_period: Period = ("2009-10", "2010-09"),
    ) -> None:
        stride = train_stride if split == "train" else val_stride
        super().__init__(
            ocean_fields(),
            split,
            window,
            stride,
            train_period,
            val_period,
            wrap_longitude=True,
        )


class DummyDataset(FieldDataset):
    """White noise with some land: nothing to learn. A loss below 1 shows that hidden values leak.

    Args:
        sample_shape: variables, months, latitudes and longitudes of a sample.
        num_samples: length of the training set; the validation set has an eighth of it.
    """

    def __init__(
        self,
        split: Split,
        sample_shape: Shape = (3, 12, 16, 32),
        num_samples: PositiveInt = 512,
    ) -> None:
        self.split = split
        self.shape = sample_shape
        self.num_samples = num_samples if split == "train" else num_samples // 8
        num_variables = sample_shape[0]
        self.variables = [f"noise_{number}" for number in range(num_variables)]
        self.units = ["1"] * num_variables
        self.mean = np.zeros(num_variables, np.float32)
        self.std = np.ones(num_variables, np.float32)

    def __len__(self) -> int:
        """The number of samples."""
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Noise that depends on the split and the index alone, whoever asks, in whatever order."""
        # Even seeds for training, odd ones for validation: no sample is in both.
        generator = torch.Generator().manual_seed(2 * index + (self.split == "val"))
        x = torch.randn(self.shape, generator=generator)
        x[..., : self.shape[3] // 5] = torch.nan  # land, the same in all samples
        return x, index
