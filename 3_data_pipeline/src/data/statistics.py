"""Statistics of fields that do not fit into memory, with dask; kept in the store, with the data."""

import itertools
from typing import Any

import dask
import numpy as np
import xarray as xr
from tqdm.dask import TqdmCallback

from src.data.checked_store import CheckedStore, NoStoreError
from src.data.store import AXES, load_together, open_lazily
from src.data.windows import Period, find_period
from src.errors import UserError

# All of it (see store.check_chunks). Large, so that only its windows are ever in memory.
CLIMATOLOGY = [("climatology", None)]


def statistics_url(url: str, train_period: Period) -> str:
    """Where they are; by training period, so none is used that has seen validation months."""
    return f"{url}/statistics/{train_period[0]}_{train_period[1]}"


def compute_statistics(fields: xr.Dataset, train_period: Period) -> xr.Dataset:
    """Compute the statistics of dask arrays over (time, lat, lon), block by block.

    Returns mean, std (V,), climatology (V, 12, H, W) of the training period, has_values (V, T): any
    at this step? Raises UserError for a variable that is constant or has no value.
    """
    steps = find_period(fields.indexes["time"], train_period)
    results: list[xr.Dataset] = []
    # One array at a time: all of them at once would need gigabytes for dask's tasks. Its levels
    # together: they may lie in the same chunks, which are read once.
    for array, levels in itertools.groupby(fields.values(), array_of):
        lazy = [lazy_statistics(level, steps) for level in levels]
        with TqdmCallback(desc=f"statistics of {array}", unit="task", disable=None):
            results += dask.compute(*lazy)
    result = xr.concat(results, "variable")
    std = result["std"].values
    if not (np.isfinite(std) & (std > 0)).all():
        raise UserError(
            f"standard deviation {std} of {list(fields)}: there is nothing to learn"
        )
    return result


def array_of(field: xr.DataArray) -> str:
    """The array of the store that a field is from: that of several levels (store.select)."""
    return str(field.encoding.get("array", field.name))


def lazy_statistics(field: xr.DataArray, steps: slice) -> xr.Dataset:
    """The statistics of one variable, of which nothing is computed yet."""
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
    return xr.Dataset(lazy).reset_coords(drop=True).drop_vars("time")


def open_statistics(store: CheckedStore) -> xr.Dataset:
    """The statistics at this place. The climatology stays in the store, because it may be large.

    Raises NoStoreError if there are none, or none that are finished.
    """
    try:
        # Consolidated metadata are written last: without them, the statistics are not finished.
        statistics = open_lazily(store, consolidated=True)
    except NoStoreError as error:
        text = "no statistics of this period; build_store.py statistics makes them"
        raise NoStoreError(f"{store.url}: {text}") from error
    statistics = statistics.reset_coords(drop=True)
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


def check_source(
    statistics: xr.Dataset, fields: xr.Dataset, url: str, place: str
) -> None:
    """Raise UserError if the statistics at ``place`` are not of these fields of ``url``."""
    # Statistics outside of their store name it. Before its address may stand filecache::
    source = statistics.attrs.get("url")
    if source and source != url.rpartition("::")[2]:
        raise UserError(f"{place}: statistics of {source}, and not of {url}")
    # The store may have grown, or may have been written again.
    if statistics.attrs.get("grid") != grid_of(fields):
        text = "statistics of another grid; build_store.py statistics makes new ones"
        raise UserError(f"{place}: {text}")


def of_variables(statistics: xr.Dataset, names: list[str], url: str) -> xr.Dataset:
    """The statistics of these variables, in this order. Raises UserError if one is not there."""
    there = statistics.attrs["variables"]
    if missing := [name for name in names if name not in there]:
        text = f"no statistics of {missing}; build_store.py statistics makes them"
        raise UserError(f"{url}: {text}")
    return statistics.isel(variable=[there.index(name) for name in names])
