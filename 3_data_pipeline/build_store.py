r"""Build Zarr stores to train from, on S3 or on this machine's disk.

  uv run python build_store.py ocean                 chapter 0's ocean, as Zarr v3
  uv run python build_store.py cube --months 120     a synthetic ocean of any size
  uv run python build_store.py netcdf --files [a.nc,b.nc] --variables [sst] --train_months [0,60] \
      --url s3://bucket/mine.zarr                    NetCDF files, as Zarr v3
  uv run python build_store.py statistics --url s3://bucket/theirs.zarr --train_months [0,60]

A build that was interrupted goes on where it stopped when you start it again. s3://embedded/... is
the server that this chapter starts by itself; .env.example says how to reach another one.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import xarray as xr
from jsonargparse import ArgumentParser
from src.config import HelpFormatter
from src.config_errors import explain
from src.data.cloud_build import OCEAN, OCEAN_CHUNK, build_store, objects_of, ocean_fields
from src.data.cloud_fields import choose_variables, chunks_of, open_for_training, region_of
from src.data.cloud_statistics import compute_statistics, write_statistics
from src.data.cloud_store import open_store
from src.data.cube import Cube
from src.data.netcdf import AXES, OTHER_NAMES
from src.errors import UserError, one_line_errors

# List prices of S3 Standard in us-east-1, https://aws.amazon.com/s3/pricing/
DOLLARS_PER_GB_MONTH, DOLLARS_PER_1000_PUTS = 0.023, 0.005
Months = tuple[int, int]
Shape = tuple[int, int, int]


def ocean(url: str = OCEAN, train_months: Months = (0, 30), overwrite: bool = False) -> None:
    """Chapter 0's real sea-surface temperature as a Zarr store.

    Args:
        url: where to.
        train_months: first month and first month after the end of the training period.
        overwrite: replace what is there.
    """
    build(url, ocean_fields(), train_months, OCEAN_CHUNK, None, 1, overwrite)


def netcdf(
    files: list[str],
    url: str,
    variables: list[str],
    train_months: Months,
    chunk: Shape = (12, 64, 64),
    shard: Shape | None = None,
    threads: int = 2,
    overwrite: bool = False,
) -> None:
    """Move NetCDF files, one after the other in time, to a Zarr store.

    Only the variables and the coordinates of their axes are kept.

    Args:
        files: NetCDF files; any number, with the same grid.
        url: where to.
        variables: which variables.
        train_months: first month and first month after the end of the training period.
        chunk: months, latitudes and longitudes of a chunk; chunk_size.py recommends one.
        shard: the same for an object that holds many chunks; null makes each chunk an object.
        threads: chunks that are read and written at the same time.
        overwrite: replace what is there.
    """
    check_blocks(chunk, shard)
    try:
        fields = xr.open_mfdataset(
            files,
            combine="nested",
            concat_dim="time",
            join="exact",
            data_vars="all",
            coords="minimal",
            compat="override",
        )
        # A file may have other coordinates than its axes, such as when a field was computed.
        fields = fields[variables].reset_coords(drop=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"files: cannot read them together: {str(error).splitlines()[0]}"
        ) from error
    fields = fields.rename(
        {old: new for old, new in OTHER_NAMES.items() if old in fields.variables}
    )
    # Files have blocks of their own, often one month each; an object is written from one block.
    blocks = dict(zip(AXES, shard or chunk, strict=True))
    fields = fields.chunk({axis: blocks[axis] for axis in AXES if axis in fields.dims})
    fields = fields.assign_attrs(source=", ".join(files))
    build(url, fields, train_months, chunk, shard, threads, overwrite)


def cube(
    url: str = "s3://embedded/cube.zarr",
    months: int = 120,
    height: int = 180,
    width: int = 360,
    seed: int = 0,
    train_months: Months | None = None,
    chunk: Shape = (12, 64, 64),
    shard: Shape | None = None,
    threads: int = 2,
    overwrite: bool = False,
) -> None:
    """A synthetic ocean of four variables; --months 1200 --height 720 --width 1440 has 20 GB.

    Args:
        url: where to.
        months: time steps.
        height: latitudes from pole to pole.
        width: longitudes round the globe.
        seed: another seed gives another ocean.
        train_months: first month and first month after the end of the training period; null takes
            the first four fifths, whole years.
        chunk: months, latitudes and longitudes of a chunk; chunk_size.py recommends one.
        shard: the same for an object that holds many chunks; null makes each chunk an object.
        threads: chunks that are computed and written at the same time.
        overwrite: replace what is there.
    """
    if min(months, height, width) < 1:
        raise UserError(f"months, height, width: {[months, height, width]}; allowed: from 1")
    if not 0 <= seed < 2**26:
        raise UserError(f"seed: {seed}; allowed: 0 to {2**26 - 1}")
    check_blocks(chunk, shard)
    fields = Cube(months, height, width, seed).fields(shard or chunk)
    period = train_months or (0, max(1, months * 4 // 5 // 12 * 12))
    build(url, fields, period, chunk, shard, threads, overwrite)


def statistics(
    url: str,
    train_months: Months,
    variables: list[str] | None = None,
    output: str | None = None,
    period: Months | None = None,
    region: tuple[float, float, float, float] | None = None,
    anonymous: bool = False,
    threads: int = 2,
) -> None:
    """Statistics of the training months of a store, computed block by block.

    Args:
        url: the store.
        train_months: first month and first month after the end of the training period.
        variables: which variables; null takes all.
        output: where to, if the store is not yours to write to.
        period: first month and first month after the end of all that you will use, validation
            included; null reads the whole store.
        region: degrees south, north, west and east, if that is all that you will use.
        anonymous: read public data without credentials.
        threads: blocks that are read at the same time.
    """
    store = open_store(url, anonymous)
    fields = open_for_training(store, with_dask=False)
    names = choose_variables(fields, variables, url)
    first, last = period or (0, fields.sizes["time"])
    if not first <= train_months[0] < train_months[1] <= last <= fields.sizes["time"]:
        raise UserError(
            f"train_months: {list(train_months)}, period: {[first, last]}; allowed: train_months "
            f"inside the period, inside the {fields.sizes['time']} steps of the store"
        )
    rows, columns = region_of(fields, region)
    fields = fields[names].isel(lat=rows, lon=columns)
    _, objects = chunks_of(store, names[0])
    found = compute_statistics(fields, train_months, objects, threads, period)
    write_statistics(open_store(output or url, writable=True), found)
    print(f"wrote the statistics of {url} to {output or url}")


def check_blocks(chunk: Shape, shard: Shape | None) -> None:
    """Raise UserError unless both have a size on every axis."""
    if min(*chunk, *(shard or chunk)) < 1:
        raise UserError(f"chunk, shard: {[*chunk]}, {shard and [*shard]}; allowed: from 1")


def build(
    url: str,
    fields: xr.Dataset,
    train_months: Months,
    chunk: Shape,
    shard: Shape | None,
    threads: int,
    overwrite: bool,
) -> None:
    """Say how much it will be, then write it."""
    number, size = objects_of(fields, chunk, shard)
    monthly, once = size / 1e9 * DOLLARS_PER_GB_MONTH, number / 1000 * DOLLARS_PER_1000_PUTS
    print(f"{', '.join(map(str, fields.data_vars))}: {dict(fields.sizes)}")
    print(f"{size / 1e9:,.3f} GB before compression, in {number:,} objects, to {url}")
    print(f"on S3 Standard at most {monthly:,.2f} $ a month, and {once:,.2f} $ to write it")
    build_store(url, fields, train_months, chunk, shard, threads, overwrite)
    print(f"finished: {url}")


COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__: command for command in (ocean, netcdf, cube, statistics)
}


def main() -> int:
    """Read the command line and run the command. Returns the exit code."""
    settings: dict[str, Any] = {
        "exit_on_error": False,
        "allow_abbrev": False,
        "formatter_class": HelpFormatter,
    }
    parser = ArgumentParser(description=__doc__, **settings)
    commands, own_parsers = parser.add_subcommands(), {"": parser}
    for name, command in COMMANDS.items():
        summary = str(command.__doc__).splitlines()[0]
        own = own_parsers[name] = ArgumentParser(description=summary, **settings)
        own.add_function_arguments(command, as_group=False)
        commands.add_subcommand(name, own, help=summary)
    try:
        config = parser.parse_args()
    except argparse.ArgumentError as error:
        named = own_parsers.get("".join(sys.argv[1:2]), parser)
        raise UserError(explain(str(error), named)) from error
    COMMANDS[config.subcommand](**vars(config[config.subcommand]))
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
