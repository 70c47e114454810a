"""Statistics of fields that do not fit into memory, with dask; kept in the store, with the data."""

from typing import Any

import numpy as np
import xarray as xr

from src.data.checked_store import CheckedStore, NoStoreError
from src.data.store import AXES, load_together, open_lazily
from src.data.windows import Period
from src.run.errors import UserError

# Whole. check_chunks reads it chunk by chunk, as it may not fit into memory.
CLIMATOLOGY = [("climatology", None)]


def statistics_url(url: str, train_period: Period) -> str:
    """Where they are; by training period, so none is used that has seen validation months."""
    return f"{url}/statistics/{train_period[0]}_{train_period[1]}"


def array_of(field: xr.DataArray) -> str:
    """The array of the store that a field is from: that of several levels (store.select)."""
    return str(field.encoding.get("array", field.name))


def lazy_statistics(field: xr.DataArray, steps: slice) -> xr.Dataset:
    """The statistics of one variable, of which nothing is computed yet.

    mean, std (), climatology (12, H, W) of the training steps; has_values (T,): any at this step?
    """
    values = field.astype("float32")
    train = values.isel(time=steps)
    # As in memory: see statistics() in pytorch_dataset.py.
    wide = train.astype("float64")
    monthly = train.groupby("time.month").mean()
    monthly = monthly.reindex(month=range(1, 13))
    lazy = {
        "mean": wide.mean(AXES).astype("float32"),
        "std": wide.std(AXES).astype("float32"),
        "climatology": monthly.transpose("month", "lat", "lon"),
        "has_values": values.notnull().any(("lat", "lon")),
    }
    # Without coordinates: they are those of the fields.
    statistics = xr.Dataset(lazy)
    return statistics.drop_vars(statistics.coords)


def open_statistics(store: CheckedStore, fields: xr.Dataset, source: str) -> xr.Dataset:
    """The statistics of a variable. The climatology stays in the store, because it may be large.

    Raises NoStoreError if there are none, none that are finished, or those of another grid than
    that of ``fields``; UserError if they are of another store than ``source``.
    """
    try:
        # Consolidated metadata are written last: without them, the statistics are not finished.
        statistics = open_lazily(store, consolidated=True)
    except NoStoreError as error:
        text = "no statistics of this period; build_store.py statistics makes them"
        raise NoStoreError(f"{store.url}: {text}") from error
    # Statistics outside of their store name it. Before its address may stand filecache::
    source = source.rpartition("::")[2]
    owner = statistics.attrs.get("url", source)
    if owner != source:
        raise UserError(f"{store.url}: statistics of {owner}, and not of {source}")
    # The store may have grown, or may have been written again.
    if statistics.attrs.get("grid") != grid_of(fields):
        text = "statistics of another grid; build_store.py statistics makes new ones"
        raise NoStoreError(f"{store.url}: {text}")
    load_together(store, statistics, ["mean", "std", "has_values"])
    return statistics


def grid_of(fields: xr.Dataset) -> dict[str, list[str]]:
    """Length, first and last value of each axis: statistics of another grid do not fit."""
    grid = {}
    for axis in AXES:
        values = fields[axis].values
        grid[axis] = [str(len(values)), str(values[0]), str(values[-1])]
    return grid


def check_dates(time: Any, period: slice) -> None:
    """Refuse dates that do not rise, and one that is missing in a period. Raises UserError.

    A window counts steps: without one day's file it would take 13 days for 12.
    """
    if not (time.is_monotonic_increasing and time.is_unique):
        raise UserError("the dates have to rise: use sortby('time')")
    if len(time) < 3:
        return
    seconds = (time[1:] - time[:-1]).total_seconds()
    is_gap = seconds > 1.5 * np.median(seconds)  # months differ by three days
    gaps = np.flatnonzero(is_gap[period.start : period.stop - 1])
    if len(gaps):
        before = period.start + gaps[0]
        raise UserError(
            f"no data between {time[before]} and {time[before + 1]}; "
            "put NaN where a date has none"
        )
