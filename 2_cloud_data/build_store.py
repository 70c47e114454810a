"""Build Zarr stores to train from, on S3 or on a disk; a build that was stopped goes on.

uv run python build_store.py ocean                                   the store of the default run
uv run python build_store.py netcdf --files [a.nc,b.nc] --url DIR    files, one after the other
uv run python build_store.py cube --months 1200 --height 720 --width 1440    synthetic, any size
uv run python build_store.py statistics --url URL --train_months [0,960]     of any Zarr store

On a dask cluster if DASK_SCHEDULER_ADDRESS names one, in threads otherwise.
"""

import contextlib
import math
import os

import xarray as xr
from distributed import Client
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from src.config import HelpFormatter
from src.data.build import OCEAN, OCEAN_CHUNK, add_statistics, build, ocean_fields
from src.data.cube import cube_fields
from src.data.pytorch_dataset import Months, Window
from src.errors import one_line_errors


def ocean(url: str = OCEAN, train_months: Months = (0, 30)) -> None:
    """Chapter 0's real ocean.

    Args:
        url: where to; s3://embedded/NAME, s3://BUCKET/NAME, gs://BUCKET/NAME or a folder.
        train_months: the first month of the training period, and the first after its end.
    """
    write(url, ocean_fields(), OCEAN_CHUNK, train_months)


def netcdf(
    files: list[str], variables: list[str], url: str, train_months: Months, chunk: Window
) -> None:
    """NetCDF files with axes for time, latitude and longitude, one after the other in time.

    Args:
        files: in any order.
        variables: which of their variables.
        url: where to.
        train_months: the first step of the training period, and the first after its end.
        chunk: steps, latitudes and longitudes of a chunk.
    """
    fields = xr.open_mfdataset(files, chunks={})[variables]
    names = {"latitude": "lat", "longitude": "lon"}
    fields = fields.rename({old: new for old, new in names.items() if old in fields.dims})
    write(url, fields.drop_attrs(deep=False), chunk, train_months)


def cube(
    url: str = "s3://embedded/cube.zarr",
    months: PositiveInt = 120,
    height: PositiveInt = 180,
    width: PositiveInt = 360,
    chunk: Window = (12, 90, 180),
    seed: int = 0,
) -> None:
    """A synthetic ocean with four variables; the first four fifths of the months are for training.

    Args:
        url: where to.
        months: number of months.
        height: latitudes from pole to pole.
        width: longitudes round the globe.
        chunk: months, latitudes and longitudes of a chunk.
        seed: another seed gives another ocean.
    """
    shape = (months, height, width)
    write(url, cube_fields(shape, chunk, seed), chunk, (0, months * 4 // 5))


def write(url: str, fields: xr.Dataset, chunk: tuple[int, ...], train_months: Months) -> None:
    """Say how much it is, and write it."""
    sizes = [fields.sizes[axis] for axis in ("time", "lat", "lon")]
    objects = math.prod(-(-size // c) for size, c in zip(sizes, chunk, strict=True)) * len(fields)
    size = 4 * math.prod(sizes) * len(fields) / 1e9
    print(
        f"{list(fields)}, {sizes}: {size:.3f} GB before compression, {objects:,} objects, to {url}"
    )
    build(url, fields, chunk, train_months)
    print(f"finished {url}, with statistics of the months {list(train_months)}")


def main() -> None:
    """Run the subcommand."""
    # Client() connects to the address in this variable.
    has_cluster = bool(os.environ.get("DASK_SCHEDULER_ADDRESS"))
    with Client() if has_cluster else contextlib.nullcontext():
        commands = {"ocean": ocean, "netcdf": netcdf, "cube": cube, "statistics": add_statistics}
        settings = {"formatter_class": HelpFormatter, "allow_abbrev": False}
        auto_cli(commands, description=__doc__, **settings)


if __name__ == "__main__":
    with one_line_errors():
        main()
