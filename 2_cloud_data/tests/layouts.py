"""Small stores: one as we build it, and others as the public ones are."""

import functools
import os
from pathlib import Path

import numpy as np
import xarray as xr
from build_store import cube_fields
from numcodecs import Blosc

from src.data.build import build
from src.data.statistics import add_statistics

URL = f"s3://embedded/small-{os.getpid()}.zarr"  # tests run in several processes
SETTINGS = {
    "window": (4, 8, 8),
    "train_stride": (2, 5, 5),
    "train_period": ("1900-01", "1901-04"),
    "val_period": ("1901-09", "1901-12"),
}


@functools.cache
def build_small(url: str = URL) -> str:
    """Two years of four variables, with land."""
    fields = cube_fields((24, 18, 36), (12, 9, 18))
    build(url, fields, (12, 9, 18), SETTINGS["train_period"])
    return url


# As WeatherBench2 has them, and as nobody has.
ORDERS = {
    2: ("time", "level", "longitude", "latitude"),
    3: ("latitude", "time", "longitude", "level"),
}
PUBLIC = {
    "variables": ["temperature", "salinity"],
    "levels": [850, 500],
    "window": (4, 8, 8),
    "train_stride": (3, 5, 7),
    "train_period": ("1900-01-01", "1900-01-01T20"),
    "val_period": ("1900-01-02T01", "1900-01-02T12"),
}
PACKING = {"scale_factor": 0.01, "add_offset": 288.0, "_FillValue": -32768}


def public_fields(zarr_format: int, names: list[str], shape=(18, 36)) -> xr.Dataset:
    """48 hours from north to south, a chunk each: a variable on three levels, and another one."""
    values = np.random.default_rng(0).normal(288, 9, (48, 3, *shape))
    values[..., :5, :5] = np.nan
    hours = np.arange(48).astype("timedelta64[h]")
    axes = {
        "time": np.datetime64("1900-01-01", "ns") + hours,
        "level": [1000, 850, 500],
        "latitude": np.linspace(90, -90, shape[0]),
        "longitude": np.linspace(0, 360, shape[1], endpoint=False),
    }
    store = xr.Dataset({names[0]: (list(axes), values)}, axes).astype("float32")
    store[names[1]] = store[names[0]][:, 0].drop_vars("level") - 5
    store = store.transpose(*ORDERS[zarr_format], missing_dims="ignore")
    return store.chunk(time=1)


def write_public(folder: Path, zarr_format: int, packed: bool) -> dict:
    """Settings for a store with these fields; its statistics lie in another folder."""
    store = public_fields(zarr_format, PUBLIC["variables"])
    settings = {"url": str(folder / "store.zarr"), "statistics_store": str(folder)}
    # NetCDF-3 has the other byte order, and so have stores that were made of it.
    dtype = ">i2" if zarr_format == 2 else "int16"
    encoding = {"dtype": dtype, **PACKING} if packed else {}
    if zarr_format == 2:
        encoding["compressors"] = [Blosc()]
    store.to_zarr(
        settings["url"],
        encoding=dict.fromkeys(store, encoding),
        zarr_format=zarr_format,
        consolidated=True,
    )
    chosen = {name: PUBLIC[name] for name in ("train_period", "variables", "levels")}
    add_statistics(settings["url"], **chosen, to=str(folder))
    return settings | PUBLIC
