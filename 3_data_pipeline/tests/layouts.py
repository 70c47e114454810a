"""Stores as others write them: other names and orders of axes, levels, packed integers, Zarr 2."""

from pathlib import Path

import numpy as np
import xarray as xr
from numcodecs import Blosc

from src.data.build import add_statistics
from src.data.cube import cube_fields

# As WeatherBench2 has them, and as nobody has, with the axes turned round.
ORDERS = {
    2: ("time", "level", "longitude", "latitude"),
    3: ("latitude", "time", "longitude", "level"),
}
PERIODS = {
    "train_period": ("1900-01-01", "1900-01-01T20"),
    "val_period": ("1900-01-02T01", "1900-01-02T12"),
}
SETTINGS = {
    "variables": ["temperature", "salinity"],
    "levels": [850, 500],
    "window": (4, 8, 8),
    "train_stride": (3, 5, 7),
    **PERIODS,
}
PACKING = {
    "temperature": {"scale_factor": 0.01, "add_offset": 288.0, "_FillValue": -32768},
    "salinity": {"scale_factor": 0.001, "add_offset": 35.0, "_FillValue": -32767},
}


def write_layout(folder: Path, zarr_format: int, packed: bool) -> str:
    """A store of hours, from north to south; its statistics lie in another folder."""
    url = str(folder / "store.zarr")
    names = {"temperature": "temperature", "surface": "salinity"}
    store = fields((18, 36), names).transpose(
        *ORDERS[zarr_format], missing_dims="ignore"
    )
    settings = {}
    # NetCDF-3 has the other byte order, and so have stores that were made of it.
    dtype = ">i2" if zarr_format == 2 else "int16"
    for name in store:
        settings[name] = {"dtype": dtype, **PACKING[name]} if packed else {}
        settings[name] |= {"compressors": [Blosc()]} if zarr_format == 2 else {}
    store.to_zarr(url, encoding=settings, zarr_format=zarr_format, consolidated=True)
    add_statistics(
        url,
        PERIODS["train_period"],
        SETTINGS["variables"],
        str(folder),
        levels=SETTINGS["levels"],
    )
    return url


def fields(shape: tuple[int, int], names: dict[str, str]) -> xr.Dataset:
    """48 hours of a field on three levels and of another one, one chunk for each hour."""
    cube = cube_fields((48, *shape), (48, *shape)).load()
    cube = cube.isel(lat=slice(None, None, -1))
    hours = np.datetime64("1900-01-01", "ns") + np.arange(48).astype("timedelta64[h]")
    surface = cube["sea_surface_temperature"]
    layers = [surface.astype("float32") * factor for factor in (1, 0.9, 0.8)]
    layers = xr.concat(layers, "level").assign_coords(level=[1000, 850, 500])
    store = {names["temperature"]: layers, names["surface"]: cube["salinity"]}
    store = xr.Dataset(store).assign_coords(time=hours)
    store = store.rename(lat="latitude", lon="longitude").drop_attrs()
    return store.chunk(time=1)


def expected(url: str, variable: str) -> xr.DataArray:
    """A variable of a layout as xarray reads it, over (time, lat, lon), float32."""
    name, _, level = variable.partition("_")
    field = xr.open_zarr(url)[name]
    field = field.sel(level=int(level)) if level else field
    return field.transpose("time", "latitude", "longitude").astype("float32")
