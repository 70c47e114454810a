"""The variables of a Zarr store: their axes under one name, and how each of them is stored."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr
import zarr

from src.data.store import CheckedStore
from src.run.errors import UserError

AXES = ("time", "lat", "lon")
# What public stores and CF call them, in lower case.
AXIS_NAMES = {
    "time": ("time", "valid_time"),
    "level": ("level", "pressure_level", "isobaricinhpa", "plev", "lev", "depth"),
    "lat": ("lat", "latitude", "y"),
    "lon": ("lon", "longitude", "x"),
}
# How numbers are packed into others (CF conventions, 8.1); xarray knows what they mean.
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
MissingChunks = Literal["error", "land"]


class NoStoreError(UserError):
    """The server answers: there is no store at this place, or none that is finished."""


@dataclass(frozen=True)
class StoredField:
    """Where a store has the values of a variable, and as what.

    Args:
        array: the name of the array.
        level: the variable's number along the axis level; None if there is no such axis.
        chunk: the size of a chunk along each axis (time, lat, lon, perhaps level), in the order of
            the axes in the store.
        dtype: of the stored numbers.
        packing: attributes that give these numbers another meaning, such as scale_factor.
        zarr_format: 2 or 3.
    """

    array: str
    level: int | None
    chunk: dict[str, int]
    dtype: np.dtype
    packing: dict[str, Any]
    zarr_format: int


def open_fields(
    store: CheckedStore,
    variables: list[str] | None = None,
    levels: Sequence[float] | None = None,
    chunks: Any = None,
) -> tuple[xr.Dataset, list[StoredField]]:
    """Variables over time, lat and lon, in the store's order, and how each of them is stored.

    Args:
        store: where they are.
        variables: names in the store; None takes all that have time, lat and lon.
        levels: values of the axis level; temperature becomes temperature_500 then.
        chunks: None: values are read when they are asked for; {}: they are dask arrays.

    Raises:
        NoStoreError: there is no store.
        UserError: a variable, a level or an axis is missing.
    """
    lazy = open_lazily(store, chunks)
    names = [
        str(name)
        for name in lazy
        if set(AXES) <= set(lazy[name].dims) <= {*AXES, "level"}
    ]
    if not names or not set(AXES) <= set(lazy.indexes):
        raise NoStoreError(
            f"{store.url}: it has no variable over time, lat, lon, or no such coordinates"
        )
    fields = {}
    stored = []
    for array in variables or sorted(names):
        if array not in names:
            raise UserError(
                f"{store.url}: variables with the axes time, lat, lon are {names}, "
                f"and {array} is none of them"
            )
        field = lazy[array]
        for name, number in level_numbers(store, field, levels).items():
            fields[name] = (
                field if number is None else field.isel(level=number, drop=True)
            )
            stored.append(stored_field(field, number))
    if store.has_land:
        check_land(store, stored)
    return xr.Dataset(fields), stored


def level_numbers(
    store: CheckedStore, field: xr.DataArray, levels: Sequence[float] | None
) -> dict[str, int | None]:
    """The variables that an array makes, and the number of each along the axis level, if any."""
    if "level" not in field.dims:
        return {str(field.name): None}
    values = field["level"].values.tolist()
    if not levels or not set(levels) <= set(values):
        raise UserError(
            f"{store.url}: levels: {field.name} has {values}; name some of them"
        )
    return {f"{field.name}_{level:g}": values.index(level) for level in levels}


def open_lazily(store: CheckedStore, chunks: Any) -> xr.Dataset:
    """A store as xarray opens it, with our names of axes; nothing but these is read."""
    try:
        # Otherwise xarray reads the axes here, one after the other, and time three times.
        lazy = xr.open_zarr(
            store,
            chunks=chunks,
            create_default_indexes=False,
            decode_times=False,
        )
    except FileNotFoundError as error:
        raise NoStoreError(
            f"{store.url}: there is no Zarr store, or no right to read it; "
            "build_store.py makes one"
        ) from error
    axes = [name for name in lazy.coords if name in lazy.dims]
    with ThreadPoolExecutor() as threads:  # side by side: each waits for the store
        list(threads.map(lambda axis: lazy.variables[axis].load(), axes))
    # Dates are decoded in the axes alone: a field may count days since a date, too.
    axis_values = xr.decode_cf(lazy[axes], mask_and_scale=False)
    # Without a grid's further coordinates, which may be large, and have the names of axes.
    lazy = lazy.assign_coords(axis_values.coords).reset_coords(drop=True)
    for axis, index in lazy.indexes.items():
        # Zarr writes no chunk of zeros, so a lost chunk of an axis reads as zeros.
        if not index.is_unique:
            raise UserError(
                f"{store.url}: {axis} has a value twice: has a chunk of it been lost?"
            )
    return rename_axes(lazy)


def rename_axes(fields: xr.Dataset) -> xr.Dataset:
    """The same fields with axes called time, level, lat and lon, in the order of the store."""
    names: dict[Any, str] = {}
    for axis, others in AXIS_NAMES.items():
        # Of two such names, the first one is the axis.
        found = [name for name in fields.dims if str(name).lower() in others]
        names |= dict.fromkeys(found[:1], axis)
    return fields.rename(names)


def stored_field(field: xr.DataArray, level: int | None) -> StoredField:
    """What xarray knows of an array of the store."""
    about = field.encoding
    packing = {key: about[key] for key in PACKING if key in about}
    return StoredField(
        array=str(field.name),
        level=level,
        chunk=dict(zip(map(str, field.dims), about["chunks"], strict=True)),
        dtype=about["dtype"],
        # NaN for no value changes nothing; it alone is unequal to itself.
        packing={key: value for key, value in packing.items() if value == value},
        zarr_format=3 if "serializer" in about else 2,  # Zarr 3 alone has one
    )


def check_land(store: CheckedStore, stored: list[StoredField]) -> None:
    """Raise UserError if missing chunks would read as numbers.

    They read as Zarr's fill value, which need not be the one that means land (_FillValue).
    """
    group: Any = zarr.open_group(store, mode="r")
    for field in stored:
        fill = group[field.array].fill_value
        land = [field.packing.get(key) for key in ("_FillValue", "missing_value")]
        if fill is None or not (np.isnan(fill) or fill in land):
            raise UserError(
                f"{store.url}: missing chunks of {field.array} read as {fill}, not as land"
            )
