"""Periods as dates, and the places of the windows that a field is cut into."""

import copy
import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from src.run.errors import UserError

Window = tuple[int, int, int]  # time steps, latitudes, longitudes
# The first and the last date, both inclusive, as exact as needed: 2006-04, 2006-04-16T12, "2006".
# A year alone needs quotes, as it would be a number: "['2006','2008']".
Period = tuple[str, str]
Coordinates = tuple[Any, Any, Any]  # dates (T,), °N (H,), °E (W,)


def find_periods(
    time: pd.Index, window: Window, periods: dict[str, Any]
) -> dict[str, slice]:
    """The steps of a time axis that belong to each Period; None is left out.

    Steps count as equally long: a date without data has to be there, with NaN.

    Raises:
        UserError: the periods overlap or lie less than a window apart, or a date has no data.
    """
    if not (time.is_monotonic_increasing and time.is_unique):
        raise UserError("the dates of the data have to rise: use sortby('time')")
    steps = {
        name: find_period(time, periods[name]) for name in periods if periods[name]
    }
    # The ocean remembers: neighbouring months are nearly copies of each other, so without a gap the
    # validation would test on what was trained.
    for a, b in itertools.combinations(steps, 2):
        gap = max(steps[b].start - steps[a].stop, steps[a].start - steps[b].stop)
        if gap < window[0]:
            raise UserError(
                f"{a}_period {list(periods[a])} and {b}_period {list(periods[b])} have to be a "
                f"window of {window[0]} time steps apart; the data go from {time[0]} to {time[-1]}"
            )
    return steps


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
        self.time = fields.indexes["time"]
        self.lat = fields["lat"].values
        self.lon = fields["lon"].values
        self.wrap_longitude = wrap_longitude
        self.place_windows(period, stride)

    def place_windows(self, period: slice, stride: Window) -> None:
        """Find the first step, row and column of every window."""
        steps, rows, columns = self.window
        height = len(self.lat)
        width = len(self.lon)
        last_column = width if self.wrap_longitude else width - columns + 1
        self.starts = [
            range(period.start, period.stop - steps + 1, stride[0]),
            range(0, height - rows + 1, stride[1]),
            range(0, last_column, stride[2]),
        ]
        if not len(self) or columns > width:
            raise UserError(
                f"no window {self.window} fits into {period.stop - period.start} time steps of "
                f"{height} by {width} points"
            )

    def of_period(self, period: Period, stride: Window) -> "WindowGrid":
        """The windows of another period of the same field."""
        grid = copy.copy(self)
        grid.place_windows(find_period(self.time, period), stride)
        return grid

    def __len__(self) -> int:
        """The number of windows."""
        return math.prod(map(len, self.starts))

    def slices(self, index: int) -> list[slice]:
        """Time steps, rows and columns of a window; columns may go on beyond the edge."""
        # Computed for each sample: a list of all places would take gigabytes for a large store.
        places = np.unravel_index(index, [len(starts) for starts in self.starts])
        window = []
        for starts, place, size in zip(self.starts, places, self.window, strict=True):
            window.append(slice(starts[place], starts[place] + size))
        return window

    def columns(self, index: int) -> np.ndarray:
        """The columns of a window; beyond the edge the first ones follow."""
        lon = self.slices(index)[2]
        return np.arange(lon.start, lon.stop) % len(self.lon)

    def coordinates(self, index: int) -> Coordinates:
        """Dates, latitudes and longitudes of a window; beyond the edge above 360 °E."""
        time, lat, _ = self.slices(index)
        lon = self.lon[self.columns(index)]
        if self.wrap_longitude:
            lon = np.unwrap(lon, period=360)
        return self.time[time].values, self.lat[lat], lon
