"""Periods as dates, and the places of the windows that a field is cut into."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr
from jsonargparse.typing import PositiveInt

from src.run.errors import UserError

# Time steps, latitudes, longitudes.
Window = tuple[PositiveInt, PositiveInt, PositiveInt]
# The first and the last date, both inclusive, as exact as needed: 2006-04, 2006-04-16T12, "2006".
# A year alone needs quotes, as it would be a number: "['2006','2008']".
Period = tuple[str, str]
Coordinates = tuple[np.ndarray, np.ndarray, np.ndarray]  # dates (T,), °N (H,), °E (W,)


def find_periods(
    time: pd.Index, window: Window, train_period: Period, val_period: Period
) -> tuple[slice, slice]:
    """The steps of a time axis that belong to each period.

    Steps count as equally long: a date without data has to be there, with NaN.

    Raises:
        UserError: the periods overlap or lie less than a window apart, or a date has no data.
    """
    if not (time.is_monotonic_increasing and time.is_unique):
        raise UserError("the dates of the data have to rise: use sortby('time')")
    train = find_period(time, train_period)
    val = find_period(time, val_period)
    # The ocean remembers: neighbouring months are nearly copies of each other, so without a gap the
    # validation would test on what was trained.
    gap = max(val.start - train.stop, train.start - val.stop)
    if gap < window[0]:
        raise UserError(
            f"train_period {list(train_period)} and val_period {list(val_period)} have to be "
            f"a window of {window[0]} time steps apart; the data go from {time[0]} to {time[-1]}"
        )
    return train, val


def find_period(time: pd.Index, period: Period) -> slice:
    """The steps from the first to the last date. Raises UserError if one of them has no data."""
    for date in period:
        try:
            # All steps of that year, month, day or hour.
            steps = time.slice_indexer(date, date)
        except (ValueError, TypeError):  # no date at all
            steps = slice(0, 0)
        if steps.start >= steps.stop:
            raise UserError(
                f"period {list(period)}: there are no data of {date}; "
                f"they go from {time[0]} to {time[-1]}"
            )
    return time.slice_indexer(*period)


def has_degrees(fields: xr.Dataset, axis: str) -> bool:
    """Whether lat or lon has degrees: others are in metres, or have numbers without a unit."""
    if axis not in fields.coords:
        return False
    attributes = fields[axis].attrs
    unit = attributes.get("units") or attributes.get("stored_name", axis)
    return str(unit).lower().startswith(("degree", axis))


class WindowGrid:
    """Where each window of a field lies: sample 0, 1, ... in the order of time, lat, lon.

    Args:
        fields: has the axes time (dates), lat (°N) and lon (°E).
        window: size of a window.
        stride: steps between the starts of neighbouring windows.
        period: steps of the time axis that windows may have.
        wrap_longitude: the field goes round the globe, so windows may cross its edge.

    Raises:
        UserError: no window fits.
    """

    def __init__(
        self,
        fields: xr.Dataset,
        window: Window,
        stride: Window,
        period: slice,
        wrap_longitude: bool = False,
    ) -> None:
        self.window = window
        self.time = fields["time"].values
        self.lat = fields["lat"].values
        self.has_degrees = has_degrees(fields, "lat")
        self.lon = fields["lon"].values
        self.month = fields["time"].dt.month.values - 1  # 0 to 11
        self.width = len(self.lon)

        steps, rows, columns = window
        last_column = self.width if wrap_longitude else self.width - columns + 1
        # The first step, row and column of every window.
        self.starts: tuple[Sequence[int], Sequence[int], Sequence[int]] = (
            range(period.start, period.stop - steps + 1, stride[0]),
            range(0, len(self.lat) - rows + 1, stride[1]),
            range(0, last_column, stride[2]),
        )
        if not len(self) or columns > self.width:
            raise UserError(f"no window {window} fits into {dict(fields.sizes)}")

    def __len__(self) -> int:
        """The number of windows."""
        return math.prod(map(len, self.starts))

    def slices(self, index: int) -> tuple[slice, slice, slice]:
        """Time steps, rows and columns of a window; columns may go on beyond the edge."""
        # Computed for each sample: a list of all places would take gigabytes for a large store.
        places = np.unravel_index(index, [len(starts) for starts in self.starts])
        window = []
        for starts, place, size in zip(self.starts, places, self.window, strict=True):
            first = starts[int(place)]
            window.append(slice(first, first + size))
        time, lat, lon = window
        return time, lat, lon

    def columns(self, index: int) -> np.ndarray:
        """The columns of a window; beyond the edge the first ones follow."""
        lon = self.slices(index)[2]
        return np.arange(lon.start, lon.stop) % self.width

    def coordinates(self, index: int) -> Coordinates:
        """Dates, latitudes and longitudes of a window; beyond the edge above 360 °E."""
        time, lat, lon = self.slices(index)
        columns = np.arange(lon.start, lon.stop)
        east = self.lon[columns % self.width] + 360 * (columns // self.width)
        return self.time[time], self.lat[lat], east
