"""Mean and standard deviation of each variable in the training period, for fields of any size.

One JSON file a period, in the store or in a folder of your own. It is written after each part of
the period, and a command that was stopped goes on with the next part.
"""

import itertools
import json
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from src.data.fields import MissingChunks, NoStoreError, open_fields
from src.data.store import CheckedStore, open_store, read_file, write_file
from src.data.windows import Period, find_period
from src.run.errors import UserError

# How many values are read for a part of the period: 4 bytes each, and 8 while they are added up.
VALUES_AT_A_TIME = 2**26


def file_name(url: str, period: Period) -> str:
    """By training period, so none is used that has seen validation months."""
    return f"statistics_{Path(url).name}_{period[0]}_{period[1]}.json"


def load_statistics(
    store: CheckedStore, url: str, names: list[str], period: Period, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (V,) of these variables of the store at ``url``.

    Raises NoStoreError if there are none, none that are finished, or those of another store.
    """
    found = json.loads(read_file(store, file_name(url, period)) or "{}")
    sums = pd.DataFrame(found.get("sums", {}))
    is_finished = found.get("url") == url and found["steps"] == num_steps
    if not is_finished or not set(names) <= set(sums):
        text = f"{url}: no statistics of {names} in {period}, or none that are finished"
        raise NoStoreError(f"{text}: run build_store.py statistics")
    count = sums.loc["count", names]
    mean = sums.loc["values", names] / count
    std = (sums.loc["squares", names] / count - mean**2) ** 0.5
    # An infinite value makes both NaN, and then all samples: everything would count as land.
    if not (np.isfinite(std) & (std > 0)).all():
        raise UserError(f"{url}: standard deviation {std.to_dict()}")
    return mean.to_numpy(np.float32), std.to_numpy(np.float32)


def add_statistics(
    url: str,
    train_period: Period,
    variables: list[str] | None = None,
    levels: list[float] | None = None,
    to: str | None = None,
    anonymous: bool = False,
    missing_chunks: MissingChunks = "error",
) -> None:
    """The statistics of a training period; a command that was stopped goes on.

    Args:
        url: the store.
        train_period: first and last date of the training, both inclusive.
        variables: which of its variables; null takes all.
        levels: which values of the axis level; each makes a variable.
        to: a folder for them, where the store cannot be written to.
        anonymous: read public data, without credentials.
        missing_chunks: what it means that the store has no such chunk: that it was lost, or land.
    """
    source = open_store(url, anonymous=anonymous, has_land=missing_chunks == "land")
    fields, stored = open_fields(source, variables, levels, chunks={})
    steps = find_period(fields.indexes["time"], train_period)
    target = open_store(to or url, read_only=False)
    file = file_name(url, train_period)
    found = json.loads(read_file(target, file) or "{}")
    if found.get("url") != url or set(found["sums"]) != set(fields):
        found = {"url": url, "steps": 0, "sums": {}}

    chunk = max(field.chunk["time"] for field in stored)
    values_in_chunk = chunk * len(fields) * fields.sizes["lat"] * fields.sizes["lon"]
    size = chunk * max(1, VALUES_AT_A_TIME // values_in_chunk)
    for part in tqdm(parts_of(steps, size), file, disable=None):
        if part.start >= steps.start + found["steps"]:
            sums = pd.DataFrame(found["sums"])
            sums = sums.add(sums_of(fields.isel(time=part)), fill_value=0)
            found["sums"] = sums.to_dict()
            found["steps"] += part.stop - part.start
            write_file(target, file, json.dumps(found, indent=1).encode())


def parts_of(steps: slice, size: int) -> list[slice]:
    """A period in parts of whole chunks, so that none is read twice."""
    first_edge = (steps.start // size + 1) * size
    edges = [steps.start, *range(first_edge, steps.stop, size), steps.stop]
    return [slice(*pair) for pair in itertools.pairwise(map(int, edges))]


def sums_of(fields: xr.Dataset) -> pd.DataFrame:
    """Count, sum and sum of squares of the valid values: a column for each variable."""
    # float64: a float32 sum of temperatures near 300 K loses the digits that matter.
    values = fields.astype("float32").astype("float64")
    rows = {"count": values.count(), "values": values.sum(), "squares": (values**2).sum()}
    (rows,) = dask.compute(rows)
    return pd.DataFrame({name: row.to_pandas() for name, row in rows.items()}).T
