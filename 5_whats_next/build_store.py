"""Build Zarr stores to train from, on S3 or on a disk. A build that was stopped goes on.

uv run python build_store.py ocean                                   the store of the default run
uv run python build_store.py netcdf --files "[a.nc,b.nc]" ...        files, one after the other
uv run python build_store.py cube --months 1200 --height 720 --width 1440    synthetic, any size
uv run python build_store.py statistics --url URL --train_period "[1900-01,1979-12]"  any Zarr store

On a dask cluster if DASK_SCHEDULER_ADDRESS names one, in threads otherwise.
"""

import contextlib
import glob
import os
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from distributed import Client
from jsonargparse import auto_cli

from src.data.build import build, build_ocean
from src.data.fields import AXES, AXIS_NAMES, rename_axes
from src.data.statistics import add_statistics
from src.data.windows import Period, Window
from src.run.config import HelpFormatter
from src.run.errors import UserError, one_line_errors

# Mean, amplitude of the waves, and unit.
CUBE_VARIABLES = {
    "sea_surface_temperature": (288.0, 8.0, "K"),
    "salinity": (35.0, 1.0, "1e-3"),
    "sea_surface_height": (0.0, 0.4, "m"),
    "current_speed": (0.3, 0.1, "m s-1"),
}


def netcdf(
    files: list[str],
    variables: list[str],
    url: str,
    train_period: Period,
    chunk: Window,
    shard: Window | None = None,
) -> None:
    """NetCDF files with axes for time, latitude and longitude, one after the other in time.

    Args:
        files: in any order; patterns such as /data/*.nc, too.
        variables: which of their variables.
        url: where to.
        train_period: first and last date of the training, both inclusive.
        chunk: steps, latitudes and longitudes of a chunk.
        shard: the same for an object, which holds several chunks; null: one object each.
    """
    paths: list[str] = []
    for pattern in files:
        found = sorted(glob.glob(pattern))  # noqa: PTH207 (pathlib takes no absolute pattern)
        if not found:
            raise UserError(f"--files: there is no {pattern}")
        paths += found
    fields = open_files(paths, variables, (shard or chunk)[0])
    # So that a build of other files, or of corrected ones, does not continue this one.
    times = [Path(path).stat().st_mtime_ns for path in paths]
    fields.attrs = {"files": str([*zip(paths, times, strict=True)])}
    build(url, fields, chunk, train_period, shard)


def open_files(paths: list[str], variables: list[str], steps: int) -> xr.Dataset:
    """Several NetCDF files as one dataset, to be read this many steps at a time.

    Raises:
        UserError: their grids differ, or a variable is missing.
    """
    # A field may be in days, or in days since a date, and has to stay a number.
    no_dates = dict.fromkeys(variables, False)
    try:
        fields = xr.open_mfdataset(
            paths,
            # What a file's axis is called is not known yet; xarray leaves out the other names.
            chunks=dict.fromkeys(AXIS_NAMES["time"], steps),
            # By default, latitudes that differ in the last digit make a grid of twice as many rows:
            # half of them are NaN, which looks like land.
            join="exact",
            decode_times=no_dates,
            decode_timedelta=no_dates,
        )
    except xr.AlignmentError as error:
        raise UserError(f"--files: {error}") from error
    if missing := set(variables) - set(fields):
        raise UserError(f"--variables: {missing} not in {paths[0]}: {list(fields)}")
    # An axis of one value, such as the depth of the surface, goes.
    return rename_axes(fields.reset_coords(drop=True))[variables].squeeze(drop=True)


def cube(
    url: str = "s3://embedded/cube.zarr",
    months: int = 120,
    height: int = 180,
    width: int = 360,
    chunk: Window = (12, 90, 180),
    shard: Window | None = None,
) -> None:
    """A synthetic ocean with four variables; the first four fifths of the months are for training.

    Args:
        url: where to.
        months: number of months.
        height: latitudes from pole to pole.
        width: longitudes round the globe.
        chunk: months, latitudes and longitudes of a chunk.
        shard: the same for an object, which holds several chunks; null: one object each.
    """
    fields = cube_fields((months, height, width), shard or chunk)
    dates = fields["time"].dt.strftime("%Y-%m").values
    train_period = (dates[0], dates[months * 4 // 5 - 1])
    build(url, fields, chunk, train_period, shard)


def cube_fields(shape: Window, chunk: Window) -> xr.Dataset:
    """An ocean of any size that needs no input: waves, noise, and NaN for land.

    Nobody would train on it for its science. Its dask arrays are computed chunk by chunk, in any
    order: noise has a seed for each chunk.
    """
    angles = []  # once round a year, from pole to pole, round the globe
    for size, period, length in zip(shape, (12, *shape[1:]), chunk, strict=True):
        angles.append(2 * np.pi / period * da.arange(size, chunks=length))
    time, lat, lon = angles
    land = np.cos(3 * lat)[:, None] * np.sin(2 * lon) > 0.6
    fields = {}
    for number, (name, (mean, amplitude, unit)) in enumerate(CUBE_VARIABLES.items()):
        waves = np.sin(time)[:, None, None] * np.cos(lat)[:, None]
        waves = waves + np.sin((number + 1) * lon + time[:, None, None])
        noise = da.random.default_rng(number).random(shape, chunks=chunk)
        values = mean + amplitude * (waves + 0.2 * noise)
        values = da.where(land, np.nan, values).astype("float32")
        fields[name] = (AXES, values, {"units": unit})
    coordinates = {
        "time": xr.date_range("1900-01", periods=shape[0], freq="MS"),
        "lat": np.linspace(-90, 90, shape[1]),
        "lon": np.linspace(0, 360, shape[2], endpoint=False),
    }
    return xr.Dataset(fields, coordinates, {"source": "synthetic ocean"})


COMMANDS: dict[str, Any] = {
    "ocean": build_ocean,
    "netcdf": netcdf,
    "cube": cube,
    "statistics": add_statistics,
}


def main() -> None:
    """Run the subcommand."""
    # Client() connects to the address in this variable.
    has_cluster = "DASK_SCHEDULER_ADDRESS" in os.environ
    with Client() if has_cluster else contextlib.nullcontext():
        auto_cli(
            COMMANDS,
            as_positional=False,
            description=__doc__,
            formatter_class=HelpFormatter,
        )
    print("finished")


if __name__ == "__main__":
    with one_line_errors():
        main()
