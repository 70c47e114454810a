"""Statistics of fields that do not fit into memory, with dask; kept in the store, with the data."""

import warnings

import numpy as np
import xarray as xr
from tqdm.dask import TqdmCallback

from src.data.store import (
    AXES,
    DECODING_ERRORS,
    CheckedStore,
    DamageError,
    explained,
    open_fields,
)
from src.data.windows import Period, find_period
from src.errors import UserError

# Zarr 3 does not specify consolidated metadata yet. Without them, a reader has to list the bucket.
# https://github.com/zarr-developers/zarr-python/pull/2556
warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")


def statistics_url(url: str, train_period: Period) -> str:
    """Where they are; by training period, so none is used that has seen validation months."""
    return f"{url}/statistics/{train_period[0]}_{train_period[1]}"


def compute_statistics(fields: xr.Dataset, train_period: Period) -> xr.Dataset:
    """Compute the statistics of dask arrays over (time, lat, lon), block by block.

    Returns mean, std (V,), climatology (V, 12, H, W) of the training period, has_values (V, T): any
    in this month? Raises UserError for a variable that is constant or has no value.
    """
    steps = find_period(fields.indexes["time"], train_period)
    results = []
    # One at a time: all variables at once would need gigabytes for dask's tasks.
    for name, values in fields.astype("float32").items():
        train = values.isel(time=steps)
        # As in memory: see statistics() in pytorch_dataset.py.
        wide = train.astype("float64")
        monthly = train.groupby("time.month").mean().reindex(month=range(1, 13))
        lazy = {
            "mean": wide.mean(AXES).astype("float32"),
            "std": wide.std(AXES).astype("float32"),
            "climatology": monthly.transpose("month", "lat", "lon"),
            "has_values": values.notnull().any(("lat", "lon")),
        }
        with TqdmCallback(desc=f"statistics of {name}", unit="task", disable=None):
            results.append(
                xr.Dataset(lazy).compute().reset_coords(drop=True).drop_vars("time")
            )
    result = xr.concat(results, "variable")
    std = result["std"].values
    if not (np.isfinite(std) & (std > 0)).all():
        raise UserError(
            f"standard deviation {std} of {list(fields)}: there is nothing to learn"
        )
    return result.assign_attrs(variables=list(fields))


def read_statistics(store: CheckedStore, names: list[str]) -> xr.Dataset:
    """Read the statistics of these variables, in this order. Raises UserError if there are none."""
    try:
        # Consolidated metadata are written last: without them, the statistics are not finished.
        statistics = open_fields(store, consolidated=True)
        order = [statistics.attrs["variables"].index(name) for name in names]
    except DamageError:
        raise
    except (UserError, ValueError) as error:
        text = f"no statistics of {names} in this period; build_store.py statistics makes them"
        raise UserError(f"{store.url}: {text}") from error
    statistics = statistics.isel(variable=order)
    try:
        # A damaged chunk shall end a training before its first step, and not in its report.
        read = statistics.compute()
    except DECODING_ERRORS as error:
        parts = [(str(name), None) for name in statistics]
        raise explained(error, store, parts) from None
    # The climatology may be large, and workers get a copy of everything: it stays in the store.
    return read.assign(climatology=statistics["climatology"])
