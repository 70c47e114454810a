"""Statistics of fields that do not fit into memory, computed block by block, kept with the data.

Shapes: V variables, T months, H latitudes, W longitudes.
"""

import sys
import warnings
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import dask
import numpy as np
import xarray as xr
import zarr
from dask.diagnostics.progress import ProgressBar

from src.data.cloud_errors import CloudError
from src.data.cloud_fields import fingerprint
from src.data.cloud_store import CheckedStore

BLOCK_BYTES = 32 << 20  # of a block's float32 values for one chunk of months


class Moments(NamedTuple):
    """Number, mean and sum of squared differences from the mean."""

    number: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def merge(self, other: "Moments") -> "Moments":
        """The moments of both sets together.

        Chan, Golub and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115. The difference
        of a sum of squares and a squared sum would lose the digits that matter: temperatures are
        near 300 K and differ by a few.
        """
        if not (number := self.number + other.number):
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * other.number / number
        squares = self.squares + other.squares + delta**2 * self.number * other.number / number
        return Moments(number, mean, squares)


def moments_of(values: np.ndarray) -> Moments:
    """The moments of the valid elements."""
    valid = values[~np.isnan(values)].astype(np.float64)
    if not valid.size:
        return Moments()
    mean = valid.mean()
    return Moments(valid.size, float(mean), float(np.square(valid - mean).sum()))


class BlockStatistics(NamedTuple):
    """What a block of one variable contributes; it covers all months."""

    moments: Moments  # of the training months
    has_values: np.ndarray  # (T,)
    climatology: np.ndarray  # (12, h, w), of the training months


def block_statistics(
    field: xr.DataArray, months: Sequence[slice], train: slice, y: slice, x: slice
) -> BlockStatistics:
    """Read a block chunk by chunk along time; only one of them is in memory at a time."""
    _, height, width = field[:1, y, x].shape
    moments, has_values = Moments(), np.ones(field.sizes["time"], bool)  # as far as one knows
    sums, counts = np.zeros((12, height, width)), np.zeros(12, int)
    calendar = field["time"].dt.month.values - 1
    for part in months:
        values = field[part, y, x].values
        has_values[part] = ~np.isnan(values).all(axis=(1, 2))
        inside = slice(max(train.start - part.start, 0), max(train.stop - part.start, 0))
        moments = moments.merge(moments_of(values[inside]))
        for number, month in zip(calendar[part][inside], values[inside], strict=True):
            sums[number] += month
            counts[number] += 1
    # A calendar month that the training period lacks gets the mean of the others.
    climatology = np.where(
        counts[:, None, None] > 0,
        sums / np.maximum(counts, 1)[:, None, None],
        sums.sum(axis=0) / max(counts.sum(), 1),
    )
    return BlockStatistics(moments, has_values, climatology.astype(np.float32))


def blocks(
    field: xr.DataArray, chunk: Sequence[int], period: tuple[int, int]
) -> tuple[list[slice], list[tuple[slice, slice]]]:
    """Slices of the months, and of each block's rows and columns: whole chunks, of bounded size."""
    _, height, width = field.shape
    length, rows, columns = chunk[0], min(chunk[1], height), min(chunk[2], width)
    room = max(1, BLOCK_BYTES // (4 * length * rows * columns))  # more than one chunk side by side
    columns = min(width, columns * room)
    room = max(1, BLOCK_BYTES // (4 * length * rows * columns))
    rows = min(height, rows * room)
    first = period[0] // length * length
    months = [
        slice(max(start, period[0]), min(start + length, period[1]))
        for start in range(first, period[1], length)
    ]
    parts = (
        [slice(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in ((height, rows), (width, columns))
    )
    return months, list(product(*parts))


def compute_statistics(
    fields: xr.Dataset,
    train_months: tuple[int, int],
    chunk: Sequence[int],
    threads: int = 2,
    period: tuple[int, int] | None = None,
) -> xr.Dataset:
    """Statistics of all variables, as ``read_statistics`` wants them; memory stays bounded.

    Args:
        fields: lazily opened, over (time, lat, lon).
        train_months: first month and first month after the end of the training period.
        chunk: what one object holds, so that each is read once.
        threads: blocks that are read at the same time. The result does not depend on it.
        period: where to look for months without values, the training months included; None means
            everywhere.
    """
    results = []
    for name, field in fields.data_vars.items():
        months, places = blocks(field, chunk, period or (0, field.sizes["time"]))
        train = slice(*train_months)
        tasks = [
            dask.delayed(block_statistics, pure=False)(field, months, train, y, x)
            for y, x in places
        ]
        print(f"statistics of {name}: {len(tasks)} block{'s' * (len(tasks) > 1)}", flush=True)
        with ProgressBar(minimum=2, out=sys.stderr):
            found = dask.compute(*tasks, scheduler="threads", num_workers=threads)
        results.append(merge_blocks(field, places, found))
    statistics = xr.concat(results, "variable")
    prints = {str(name): fingerprint(fields, str(name)) for name in fields.data_vars}
    return statistics.assign_attrs(train_months=list(train_months), variables=prints)


def merge_blocks(
    field: xr.DataArray, places: Sequence[tuple[slice, slice]], found: Sequence[BlockStatistics]
) -> xr.Dataset:
    """Put the blocks of one variable together, in a fixed order, so that rounding repeats."""
    total = Moments()
    has_values = np.logical_or.reduce([block.has_values for block in found])
    climatology = np.empty((12, *field.shape[1:]), np.float32)
    for (y, x), block in zip(places, found, strict=True):
        total = total.merge(block.moments)
        climatology[:, y, x] = block.climatology
    std = np.sqrt(total.squares / total.number) if total.number else np.nan
    return xr.Dataset(
        {
            "count": ((), total.number),
            "mean": ((), total.mean),
            "std": ((), std),
            "has_values": ("time", has_values),
            "climatology": (("month", "lat", "lon"), climatology),
        }
    )


def group_of(train_months: Sequence[int]) -> str:
    """Where the statistics of a training period are, so that several periods have a place."""
    start, end = train_months
    return f"statistics/{start}-{end}"


def has_statistics(store: CheckedStore, train_months: Sequence[int]) -> bool:
    """Whether there are finished statistics of this period."""
    try:
        group = zarr.open_group(store, path=group_of(train_months), mode="r")
    except FileNotFoundError:
        return False
    return "variables" in group.attrs


def write_statistics(store: CheckedStore, statistics: xr.Dataset) -> None:
    """Keep them beside those of other training periods, in the place of older ones of this."""
    # Chunks of the climatology: what a window needs of it, and not the whole globe.
    shape = statistics["climatology"].shape
    encoding = {"climatology": {"chunks": (1, *(min(size, 128) for size in shape[1:]))}}
    group = group_of(statistics.attrs["train_months"])
    # What they were made of is written last: without it, they are not finished.
    statistics.drop_attrs(deep=False).to_zarr(
        store,
        group=group,
        mode="w",
        encoding=encoding,
        zarr_format=3,
        consolidated=False,
        write_empty_chunks=True,
    )
    zarr.open_group(store, path=group, mode="r+").attrs.update(statistics.attrs)


def read_statistics(
    store: CheckedStore, fields: xr.Dataset, train_months: tuple[int, int], url: str
) -> xr.Dataset:
    """The statistics of the variables of ``fields``, in their order.

    Raises CloudError if they are missing, of something else, or no use; ``url`` names the data.
    """
    months = f"[{train_months[0]},{train_months[1]}]"
    remedy = f"make them with: build_store.py statistics --url {url} --train_months {months}"
    if store.url != url:
        remedy += f" --output {store.url}"
    if not has_statistics(store, train_months):
        raise CloudError(f"{store.url}: there are no statistics of the months {months}; {remedy}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Object at .* is not recognized")
        group = group_of(train_months)
        statistics = xr.open_zarr(store, group=group, chunks=None, consolidated=False)
    made_of = statistics.attrs["variables"]
    for name in map(str, fields.data_vars):
        if made_of.get(name) != fingerprint(fields, name):
            what = "other data" if name in made_of else "other variables"
            raise CloudError(
                f"{store.url}: the statistics are of {what}, not of {name} in this store; {remedy}"
            )
    statistics = statistics.isel(variable=[list(made_of).index(name) for name in fields.data_vars])
    for variable, std in zip(fields.data_vars, statistics["std"].values, strict=True):
        if not np.isfinite(std) or not std:
            raise CloudError(
                f"{url}: {variable} has no values in the months {months}, or the same everywhere: "
                "there is nothing to learn"
            )
    return statistics
