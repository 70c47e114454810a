"""Datasets of gridded fields: windows of any xarray dataset, real ocean data, random numbers."""

# A sample is (x, index): x float32 (V, T, H, W), normalised, NaN where there is no value (land or a
# gap); index its number. V variables, T months, H latitudes, W longitudes.

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import iris_sample_data
import numpy as np
import torch
import xarray as xr
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.utils.data import Dataset

from src.errors import UserError

Split = Literal["train", "val"]
Window = tuple[PositiveInt, PositiveInt, PositiveInt]  # months, latitudes, longitudes
Months = tuple[NonNegativeInt, NonNegativeInt]  # the first, and the first after the end
Coordinates = tuple[np.ndarray, np.ndarray, np.ndarray]  # dates (T,), °N (H,), °E (W,)


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

    def __len__(self) -> int:
        raise NotImplementedError

    def coordinates(self, index: int) -> Coordinates:
        """Time, latitudes and longitudes for a picture; here: samples without a place, in a row."""
        _, num_times, height, width = self.sample_shape
        return (
            np.zeros(num_times),
            np.arange(height)[::-1],
            np.arange(width) + index * (width + 1),
        )


class WindowDataset(FieldDataset):
    """Windows of fields that fit into memory, one for each position that the stride reaches."""

    def __init__(
        self,
        fields: xr.Dataset,  # variables over (time, lat, lon), NaN for no value; time as dates
        split: Split,
        window: Window,
        stride: Window,  # steps between the starts of neighbouring windows
        train_months: Months,
        val_months: Months,
        wrap_longitude: bool = False,  # the grid goes round the globe: windows may cross its edge
    ) -> None:
        check_months(fields.sizes["time"], window[0], train_months, val_months)
        self.variables, self.window = [str(name) for name in fields], window
        self.units = [fields[name].attrs.get("units", "1") for name in self.variables]
        values = (
            fields.to_dataarray()
            .transpose("variable", "time", "lat", "lon")
            .astype("float32")
        )
        # From the training months alone: anything else would tell the model about the months that
        # it is tested on.
        self.mean, self.std = statistics(values.isel(time=slice(*train_months)))
        if wrap_longitude:
            # With the first columns repeated at the end, a window across the edge is a plain slice.
            start = values.isel(lon=slice(window[2] - 1))
            values = xr.concat(
                [values, start.assign_coords(lon=start.lon + 360)], "lon"
            )
        train = values.isel(time=slice(*train_months))
        # (V, 12, H, W); a calendar month without training data has no climatology: NaN.
        monthly = train.groupby("time.month").mean().reindex(month=range(1, 13))
        monthly = monthly.transpose("variable", "month", "lat", "lon")
        self.fields = self.normalise(values.values)
        self.monthly_mean = self.normalise(monthly.values)
        self.time, self.lat, self.lon = (
            values[axis].values for axis in ("time", "lat", "lon")
        )
        self.month = values["time"].dt.month.values - 1

        months = train_months if split == "train" else val_months
        ends = [months, (0, len(self.lat)), (0, len(self.lon))]
        axes = zip(ends, window, stride, strict=True)
        starts = [
            range(first, end - size + 1, step) for (first, end), size, step in axes
        ]
        self.starts = list(itertools.product(*starts))  # (month, latitude, longitude)

    def normalise(self, fields: np.ndarray) -> np.ndarray:
        """Fields (V, T, H, W) with mean 0 and standard deviation 1."""
        return (fields - self.mean[:, None, None, None]) / self.std[:, None, None, None]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.fields[:, *self.slices(index)]), index

    def slices(self, index: int) -> tuple[slice, ...]:
        """The sample's place in the fields: slices of time, latitude and longitude."""
        return tuple(
            slice(i, i + n)
            for i, n in zip(self.starts[index], self.window, strict=True)
        )

    def coordinates(self, index: int) -> Coordinates:
        t, y, x = self.slices(index)
        return self.time[t], self.lat[y], self.lon[x]

    def climatology(self, index: int) -> Tensor:
        """(V, T, H, W), normalised: the training months' mean for this place and time of year."""
        t, y, x = self.slices(index)
        return torch.from_numpy(self.monthly_mean[:, self.month[t], y, x])


def check_months(num_months: int, window: int, train: Months, val: Months) -> None:
    """Raise UserError unless both periods lie within the data, at least one window apart."""
    # The ocean remembers: neighbouring months are nearly copies of each other, so without a gap the
    # validation would test on what was trained.
    is_inside = all(0 <= first < end <= num_months for first, end in (train, val))
    gap = max(val[0] - train[1], train[0] - val[1])
    if not is_inside or gap < window:
        raise UserError(
            f"data.dataset: train_months {train} and val_months {val} have to be {window} months, "
            f"a window, apart, and within {num_months} months"
        )


def statistics(train: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (V,) of the valid values of ``train`` (V, T, H, W)."""
    # float64: a float32 sum over millions of temperatures near 300 K loses the digits that matter.
    train, axes = train.astype(np.float64), ("time", "lat", "lon")
    with np.errstate(invalid="ignore"):  # of infinite values, which are reported below
        mean, std = train.mean(axes).values, train.std(axes).values
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
        train_months: first month and first month after the end of the training period, 0 to 54.
        val_months: the same for validation; at least one window away from the training months.
    """

    def __init__(
        self,
        split: Split,
        window: Window = (12, 16, 32),
        train_stride: Window = (1, 1, 10),
        val_stride: Window = (12, 2, 16),
        train_months: Months = (0, 30),
        val_months: Months = (42, 54),
    ) -> None:
        stride = train_stride if split == "train" else val_stride
        super().__init__(
            ocean_fields(), split, window, stride, train_months, val_months, True
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
        sample_shape: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (
            3,
            12,
            16,
            32,
        ),
        num_samples: PositiveInt = 512,
    ) -> None:
        self.split, self.shape, num_variables = split, sample_shape, sample_shape[0]
        self.num_samples = num_samples if split == "train" else num_samples // 8
        self.variables = [f"noise_{number}" for number in range(num_variables)]
        self.units = ["1"] * num_variables
        self.mean, self.std = (
            np.zeros(num_variables, "float32"),
            np.ones(num_variables, "float32"),
        )

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        # Seeded by the index: the sample is the same whoever asks, in whatever order.
        # Even seeds for training, odd ones for validation: no sample is in both.
        generator = torch.Generator().manual_seed(2 * index + (self.split == "val"))
        x = torch.randn(self.shape, generator=generator)
        x[..., : self.shape[3] // 5] = torch.nan  # land, the same in all samples
        return x, index
