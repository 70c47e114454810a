"""Datasets of gridded fields: windows of any xarray dataset, real ocean data, random numbers.

A sample is (x, index): x float32 (V, T, H, W), normalised, NaN where there is no value (land or a
gap); index its number. V variables, T time steps, H latitudes, W longitudes.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import iris_sample_data
import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils.data import Dataset

from src.data.windows import Coordinates, Period, Window, WindowGrid, find_periods
from src.run.errors import UserError

Split = Literal["train", "val", "test"]


class FieldDataset(Dataset):
    """What the train scripts ask of a dataset.

    A subclass sets the first four attributes, and has ``__len__`` and ``__getitem__``. The methods
    below suit samples without a place on the globe, such as images.
    """

    variables: Sequence[str]
    units: Sequence[str]
    mean: np.ndarray  # (V,); with std it turns a normalised sample back into units
    std: np.ndarray
    test_period: Period | None = None  # of the split "test", if there is one

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """(V, T, H, W) of every sample."""
        return tuple(self[0][0].shape)

    def __len__(self) -> int:
        """The number of samples."""
        raise NotImplementedError

    def coordinates(self, index: int) -> Coordinates:
        """Dates, latitudes and longitudes of a sample, for a picture."""
        _, num_times, height, width = self.sample_shape
        dates = [f"sample {index}"] * num_times
        return dates, range(height, 0, -1), range(width)

    def cell_area(self, index: Tensor) -> Tensor:
        """Relative area of the cells of each row, by which scores are weighted: (B, H)."""
        return torch.ones(len(index), self.sample_shape[2])


class GridDataset(FieldDataset):
    """Windows of a field on a grid: a subclass sets ``grid``, which says where they lie."""

    grid: WindowGrid

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.grid)

    def coordinates(self, index: int) -> Coordinates:
        """Dates, latitudes and longitudes of a window."""
        return self.grid.coordinates(index)

    def cell_area(self, index: Tensor) -> Tensor:
        """Cosine of each row's latitude: (B, H)."""
        lat = np.stack([self.coordinates(i)[1] for i in index.tolist()])
        if np.abs(self.grid.lat).max() > 90:
            # Not degrees, but metres of a projection: its cells are alike.
            lat = np.zeros_like(lat)
        return torch.from_numpy(np.cos(np.deg2rad(lat)))

    def windows_of(self, period: Period, stride: Window) -> Self:
        """The windows of another period, normalised as these are."""
        other = copy.copy(self)
        other.grid = self.grid.of_period(period, stride)
        return other


class WindowDataset(GridDataset):
    """Windows of fields that fit into memory, one for each position that the stride reaches.

    The defaults are those of OceanDataset.

    Args:
        fields: variables over (time, lat, lon), NaN for no value; time as dates.
        split: which period the windows are from.
        window: time steps, latitudes and longitudes of a sample.
        train_stride: steps between neighbouring training windows; smaller steps give more windows.
        val_stride: the same for validation, and for the test.
        train_period: first and last date of the training, both inclusive.
        val_period: the same for validation; at least one window away.
        test_period: the same for a test that is scored once, after the training; null for none.
        wrap_longitude: the grid goes round the globe: windows may cross its edge.
    """

    def __init__(
        self,
        fields: xr.Dataset,
        split: Split,
        window: Window = (12, 16, 32),
        train_stride: Window = (1, 1, 10),
        val_stride: Window = (12, 2, 16),
        train_period: Period = ("2006-04", "2008-09"),
        val_period: Period = ("2009-10", "2010-09"),
        test_period: Period | None = None,
        wrap_longitude: bool = False,
    ) -> None:
        self.test_period = test_period
        periods = {"train": train_period, "val": val_period, "test": test_period}
        steps = find_periods(fields.indexes["time"], window, periods)
        stride = train_stride if split == "train" else val_stride
        self.grid = WindowGrid(fields, window, stride, steps[split], wrap_longitude)
        self.variables = [str(name) for name in fields]
        self.units = [fields[name].attrs.get("units", "1") for name in self.variables]

        # Statistics come from the training period alone: anything else would tell the model about
        # the months that it is tested on.
        values = fields.to_dataarray().astype(np.float32)
        train_values = values[:, steps["train"]]
        mean, std = statistics(train_values)
        self.mean = mean.values
        self.std = std.values
        self.fields = ((values - mean) / std).values

        # For each time step the mean of its calendar month; NaN for one without training data.
        monthly = train_values.groupby("time.month").mean()
        season = monthly.reindex(month=values["time.month"].values)
        season = season.transpose("variable", "month", "lat", "lon")
        self.season = ((season - mean) / std).values

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """The window, normalised, and its number."""
        return self.cut(self.fields, index), index

    def climatology(self, index: int) -> Tensor:
        """(V, T, H, W), normalised: the training period's mean for this place and time of year."""
        return self.cut(self.season, index)

    def cut(self, fields: np.ndarray, index: int) -> Tensor:
        """The part of the whole ``fields`` that lies in a window."""
        time, lat, _ = self.grid.slices(index)
        return torch.from_numpy(fields[:, time, lat][..., self.grid.columns(index)])


def statistics(train: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean and standard deviation (V,) of the valid values of ``train`` (V, T, H, W).

    Raises:
        UserError: a variable has no values, always the same one, or an infinite one.
    """
    # float64: a float32 sum over millions of temperatures near 300 K loses the digits that matter.
    values = train.astype(np.float64)
    axes = ("time", "lat", "lon")
    mean = values.mean(axes)
    std = values.std(axes)
    # An infinite value makes both NaN, and then all samples: everything would count as land.
    if not (np.isfinite(std) & (std > 0)).all():
        raise UserError(f"data.dataset: the standard deviations are {std.values}")
    return mean.astype(np.float32), std.astype(np.float32)


class OceanDataset(WindowDataset):
    """Real sea-surface temperature: OSTIA, monthly, April 2006 to September 2010, 5°S to 5°N, in K.

    Source: package iris-sample-data (British Crown copyright, Open Government Licence).

    Args:
        split: "train" or "val".
        settings: window, strides and periods of WindowDataset.
    """

    def __init__(self, split: Split, **settings: Any) -> None:
        super().__init__(ocean_fields(), split, wrap_longitude=True, **settings)


def ocean_fields() -> xr.Dataset:
    """The fields of OceanDataset, over (time, lat, lon)."""
    fields = xr.load_dataset(Path(iris_sample_data.path) / "ostia_monthly.nc")
    return fields[["surface_temperature"]].rename(latitude="lat", longitude="lon")


class DummyDataset(FieldDataset):
    """White noise with some land: nothing to learn. A loss below 1 shows that hidden values leak.

    Args:
        sample_shape: variables, months, latitudes and longitudes of a sample.
        num_samples: length of the training set; the validation set has an eighth of it.
    """

    def __init__(
        self,
        split: Split,
        sample_shape: tuple[int, int, int, int] = (3, 12, 16, 32),
        num_samples: int = 512,
    ) -> None:
        self.is_train = split == "train"
        self.num_samples = num_samples if self.is_train else num_samples // 8
        self.shape = sample_shape
        num_variables = sample_shape[0]
        self.variables = [f"noise_{number}" for number in range(num_variables)]
        self.units = ["1"] * num_variables
        self.mean = np.zeros(num_variables)
        self.std = np.ones(num_variables)

    def __len__(self) -> int:
        """The number of samples."""
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Noise that depends on the split and the index alone, whoever asks, in whatever order."""
        # Even seeds for training, odd ones for validation: no sample is in both.
        generator = torch.Generator().manual_seed(2 * index + (not self.is_train))
        x = torch.randn(self.shape, generator=generator)
        x[..., : self.shape[3] // 5] = torch.nan  # land, the same in all samples
        return x, index
