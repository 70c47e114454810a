"""Mean and standard deviation of each variable in the training period, for fields of any size.

They are one JSON file a period, in the store or in a folder of your own: the sums of the part of
the period that is done. A command that was stopped goes on with the next part.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import dask
import numpy as np
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


def read_sums(store: CheckedStore, file: str) -> dict[str, Any]:
    """How many steps are done, and for each variable count, sum and sum of squares."""
    content = read_file(store, file)
    return json.loads(content) if content else {"steps": 0, "sums": {}}


def load_statistics(
    store: CheckedStore,
    url: str,
    variables: list[str],
    period: Period,
    steps: slice,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (V,) of these variables of the store at ``url``.

    Raises:
        NoStoreError: there are none, or none that are finished.
        UserError: a variable has always the same value, or an infinite one.
    """
    found = read_sums(store, file_name(url, period))
    sums = found["sums"]
    is_finished = found["steps"] == steps.stop - steps.start
    if not is_finished or not set(variables) <= set(sums):
        raise NoStoreError(
            f"{url}: no statistics of {variables} in {period}, or none that are finished: "
            "run build_store.py statistics"
        )
    count, total, squares = np.array([sums[name] for name in variables]).T
    mean = total / count
    std = (squares / count - mean**2) ** 0.5
    # An infinite value makes both NaN, and then all samples: everything would count as land.
    # And the digits that float32 loses make a constant's deviation a little more than 0.
    if not (np.isfinite(std) & (std > 1e-6 * abs(mean))).all():
        raise UserError(f"{url}: the standard deviations of {variables} are {std}")
    return mean.astype(np.float32), std.astype(np.float32)


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
        to: a folder for them where the store cannot be written to, with none of another store.
        anonymous: read public data, without credentials.
        missing_chunks: whether a chunk that is not there was lost (error), or is land.
    """
    source = open_store(url, anonymous=anonymous, has_land=missing_chunks == "land")
    fields, stored = open_fields(source, variables, levels, chunks={})
    steps = find_period(fields.indexes["time"], train_period)
    target = open_store(to or url, read_only=False)
    file = file_name(url, train_period)
    found = read_sums(target, file)
    if not found["sums"]:
        found["sums"] = dict.fromkeys(fields, (0.0, 0.0, 0.0))
    elif set(found["sums"]) != set(fields):
        raise UserError(
            f"{target.url}/{file} has other variables: delete it, or name a folder (--to)"
        )

    # Whole chunks, so that none is read twice.
    chunk = max(field.chunk["time"] for field in stored)
    values_in_step = len(fields) * fields.sizes["lat"] * fields.sizes["lon"]
    size = chunk * max(1, VALUES_AT_A_TIME // (chunk * values_in_step))
    first_edge = (steps.start // size + 1) * size
    edges = [steps.start, *range(first_edge, steps.stop, size), steps.stop]
    for start, stop in tqdm(list(itertools.pairwise(edges)), file, disable=None):
        if start < steps.start + found["steps"]:
            continue
        for name, sums in sums_of(fields.isel(time=slice(start, stop))).items():
            found["sums"][name] = np.add(found["sums"][name], sums).tolist()
        found["steps"] += int(stop - start)
        write_file(target, file, json.dumps(found, indent=1).encode())


def sums_of(fields: xr.Dataset) -> dict[str, tuple[float, ...]]:
    """Count, sum and sum of squares of the valid values of each variable."""
    # float64: a float32 sum of temperatures near 300 K loses the digits that matter.
    values = fields.astype("float32").astype("float64")
    sums = dask.compute(values.count(), values.sum(), (values**2).sum())
    return {str(name): tuple(float(part[name]) for part in sums) for name in fields}
