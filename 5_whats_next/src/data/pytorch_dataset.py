"""Datasets of gridded fields: real ocean data, random numbers, and windows cut from any xarray
dataset.

A sample is ``(x, index)``: x float32 (V, T, H, W), normalised, NaN where there is no value; index
its number.

Shapes: V variables, T months, H latitudes, W longitudes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import iris_sample_data
import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils.data import Dataset

from src.data.netcdf import check_axes, open_fields
from src.data.statistics import (
    check_counts,
    check_months,
    monthly_climatology,
    normalise,
    valid_statistics,
)
from src.errors import UserError

Split = Literal["train", "val"]


class Coordinates(NamedTuple):
    """Where and when a sample lies: datetime64 (T,), degrees north (H,), degrees east (W,)."""

    time: np.ndarray
    lat: np.ndarray
    lon: np.ndarray


class FieldDataset(Dataset):
    """What the train script asks of a dataset: four attributes, a length, samples.

    ``mean`` and ``std`` (V,) turn a normalised sample back into ``units``. The last two methods are
    optional: they give the pictures their axes and the validation its climatology.
    """

    variables: Sequence[str]
    units: Sequence[str]
    mean: np.ndarray
    std: np.ndarray

    @property
    def sample_shape(self) -> tuple[int, int, int, int]:
        """(V, T, H, W) of every sample."""
        num_variables, num_times, height, width = self[0][0].shape
        return num_variables, num_times, height, width

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise NotImplementedError

    def coordinates(self, index: int) -> Coordinates | None:
        """Where the sample lies, if it lies anywhere."""
        return None

    def climatology(self, index: int) -> Tensor | None:
        """(V, T, H, W), normalised: the training months' mean for this place and time of year."""
        return None


class WindowDataset(FieldDataset):
    """Windows of fields that fit into memory, one sample for each position that the stride reaches.

    Statistics come from the training months alone: anything else would tell the model about the
    months it is tested on. Training and validation months are at least one window apart, because
    the ocean remembers: neighbouring months are nearly copies of each other.

    Args:
        fields: variables over (time, lat, lon), NaN where there is no value; time as dates.
        split: which months the windows come from.
        window: months, latitudes and longitudes of a sample.
        stride: steps between the starts of neighbouring windows, along the same axes.
        train_months: first month and first month after the end of the training period.
        val_months: the same for validation.
        wrap_longitude: the grid goes round the globe, so windows may cross its edge.
    """

    def __init__(
        self,
        fields: xr.Dataset,
        split: Split,
        window: tuple[int, int, int],
        stride: tuple[int, int, int],
        train_months: tuple[int, int],
        val_months: tuple[int, int],
        wrap_longitude: bool = False,
    ) -> None:
        check_axes(fields)
        fields = fields.transpose("time", "lat", "lon")
        self.variables = [str(name) for name in fields.data_vars]
        self.units = [fields[name].attrs.get("units", "1") for name in self.variables]
        self.time, self.lat, self.lon = (fields[axis].values for axis in ("time", "lat", "lon"))
        check_months(len(self.time), window[0], train_months, val_months)

        values = np.stack([fields[name].values for name in self.variables]).astype(np.float32)
        for name, field in zip(self.variables, values, strict=True):
            if infinite := np.isinf(field).sum():
                raise UserError(f"data.dataset: {name} has {infinite} infinite values")
        train = values[:, slice(*train_months)]
        self.mean, self.std = valid_statistics(train, self.variables)
        self.fields = normalise(values, self.mean, self.std)
        self.calendar_month = fields["time"].dt.month.values - 1
        self.monthly_mean = monthly_climatology(
            self.fields[:, slice(*train_months)], self.calendar_month[slice(*train_months)]
        )
        if wrap_longitude:
            # With the first columns repeated at the end, a window across the edge is a plain slice.
            extra = window[2] - 1
            self.fields, self.monthly_mean = (
                np.concatenate([array, array[..., :extra]], axis=-1)
                for array in (self.fields, self.monthly_mean)
            )
            self.lon = np.concatenate([self.lon, self.lon[:extra] + 360.0])

        months = train_months if split == "train" else val_months
        for name, field in zip(self.variables, self.fields[:, slice(*months)], strict=True):
            if np.isnan(field).all():
                raise UserError(
                    f"data.dataset: {name} has no valid value in months {list(months)} ({split})"
                )
        if min(*window, *stride) < 1:
            raise UserError(
                f"data.dataset: window {list(window)} and stride {list(stride)} must be at least 1"
            )
        _, _, height, width = self.fields.shape
        self.window = window
        self.starts = [
            (t, y, x)
            for t in range(months[0], months[1] - window[0] + 1, stride[0])
            for y in range(0, height - window[1] + 1, stride[1])
            for x in range(0, width - window[2] + 1, stride[2])
        ]
        if not self.starts:
            raise UserError(
                f"data.dataset.window: {list(window)} (months, lat, lon) is larger than the "
                f"{split} field; allowed: up to {[months[1] - months[0], height, width]}"
            )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.fields[:, *self.slices(index)]), index

    def slices(self, index: int) -> tuple[slice, slice, slice]:
        """The sample's place in the fields: slices of time, latitude and longitude."""
        pairs = zip(self.starts[index], self.window, strict=True)
        t, y, x = (slice(start, start + size) for start, size in pairs)
        return t, y, x

    def coordinates(self, index: int) -> Coordinates:
        t, y, x = self.slices(index)
        return Coordinates(self.time[t], self.lat[y], self.lon[x])

    def climatology(self, index: int) -> Tensor:
        t, y, x = self.slices(index)
        return torch.from_numpy(self.monthly_mean[:, self.calendar_month[t], y, x])


class OceanDataset(WindowDataset):
    """Real sea-surface temperature: OSTIA, monthly, April 2006 to September 2010, 5°S to 5°N, in K.

    British Crown copyright, Open Government Licence; it comes with the package iris-sample-data.

    Args:
        split: which months the windows come from.
        window: months, latitudes and longitudes of a sample.
        train_stride: steps between neighbouring training windows; smaller steps give more windows.
        val_stride: the same for validation.
        train_months: first month and first month after the end of the training period, 0 to 54.
        val_months: the same for validation; at least one window away from the training months.
    """

    def __init__(
        self,
        split: Split,
        window: tuple[int, int, int] = (12, 16, 32),
        train_stride: tuple[int, int, int] = (1, 1, 10),
        val_stride: tuple[int, int, int] = (12, 2, 16),
        train_months: tuple[int, int] = (0, 30),
        val_months: tuple[int, int] = (42, 54),
    ) -> None:
        path = Path(iris_sample_data.path) / "ostia_monthly.nc"
        fields = open_fields(path, ["surface_temperature"])
        stride = train_stride if split == "train" else val_stride
        super().__init__(
            fields, split, window, stride, train_months, val_months, wrap_longitude=True
        )


class DummyDataset(FieldDataset):
    """White noise with some land: nothing to learn, but everything has the right shape.

    The best guess is the mean, so the loss settles near 1. A loss clearly below that of the visible
    mean tells that hidden values leak into the prediction.

    Args:
        split: training and validation samples differ.
        sample_shape: variables, months, latitudes and longitudes of a sample.
        num_samples: length of the training set.
        num_val_samples: length of the validation set.
        land_fraction: share of the grid points without a value.
    """

    def __init__(
        self,
        split: Split,
        sample_shape: tuple[int, int, int, int] = (3, 12, 16, 32),
        num_samples: int = 512,
        num_val_samples: int = 64,
        land_fraction: float = 0.2,
    ) -> None:
        if not 0 <= land_fraction < 1:
            raise UserError(
                f"data.dataset.land_fraction: {land_fraction} leaves no valid value; "
                "allowed: 0 up to 1"
            )
        check_counts(num_samples=num_samples, num_val_samples=num_val_samples)
        self.split, self.shape = split, sample_shape
        self.num_samples = num_samples if split == "train" else num_val_samples
        self.variables = [f"noise_{number}" for number in range(sample_shape[0])]
        self.units = ["1"] * sample_shape[0]
        self.mean = np.zeros(sample_shape[0], np.float32)
        self.std = np.ones(sample_shape[0], np.float32)
        # One block, the same in all samples: a coast at a fixed longitude.
        self.num_land = round(land_fraction * sample_shape[3])

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        # Seeded by the index: the sample is the same whoever asks, in whatever order.
        generator = torch.Generator().manual_seed(2 * index + (self.split == "val"))
        x = torch.randn(self.shape, generator=generator)
        x[..., : self.num_land] = torch.nan
        return x, index
