"""Build Zarr stores to train from, on S3 or on a disk. A build that was stopped goes on; pack
begins again.

uv run python build_store.py ocean                                   the store of the default run
uv run python build_store.py netcdf --files "[a.nc,b.nc]" ...        files, one after the other
uv run python build_store.py cube --months 1200 --height 720 --width 1440    synthetic, any size
uv run python build_store.py check --url URL --repair true          what is missing or damaged
uv run python build_store.py statistics --url URL --train_period "[1900-01,1979-12]"  any Zarr store
uv run python build_store.py pack --url URL --chunk "[1,64,64]"    a copy that is read faster

On a dask cluster if DASK_SCHEDULER_ADDRESS names one, in threads otherwise.
"""

import contextlib
import glob
import math
import os
import sys
from pathlib import Path
from typing import Any

import xarray as xr
import zarr
from distributed import Client
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from tqdm import tqdm
from zarr.codecs import ZstdCodec

from src.data.build import add_statistics, build, build_ocean
from src.data.check import damage, mend_statistics, note_damaged_regions
from src.data.chunks import DECODING_ERRORS
from src.data.cube import cube_fields
from src.data.statistics import grid_of
from src.data.store import (
    AXES,
    AXIS_NAMES,
    named_axes,
    open_fields,
    open_store,
    select,
)
from src.data.windows import Period, Window
from src.run.config import HelpFormatter
from src.run.errors import UserError, one_line_errors


def open_files(paths: list[str], steps: int, variables: list[str]) -> xr.Dataset:
    """Several NetCDF files as one dataset, to be read this many steps at a time.

    Raises UserError if their grids differ.
    """
    # A file without chunks would be one block for dask, which reads all of it for each region. What
    # a file's axis is called is not known yet; xarray leaves out the other names.
    chunks = dict.fromkeys(AXIS_NAMES["time"], steps)
    # A field may be in days, or in days since a date, and has to stay a number.
    no_dates = dict.fromkeys(variables, False)
    try:
        # By default, latitudes that differ in the last digit make a grid of twice as many rows:
        # half of them are NaN, which looks like land.
        return xr.open_mfdataset(
            paths,
            chunks=chunks,
            join="exact",
            decode_times=no_dates,
            decode_timedelta=no_dates,
        )
    except xr.AlignmentError as error:
        raise UserError(f"--files: {error}") from error


def netcdf(
    files: list[str],
    variables: list[str],
    url: str,
    train_period: Period,
    chunk: Window,
    shard: Window | None = None,
    levels: list[float] | None = None,
) -> None:
    """NetCDF files with axes for time, latitude and longitude, one after the other in time.

    Args:
        files: in any order; patterns such as /data/*.nc, too.
        variables: which of their variables.
        url: where to.
        train_period: first and last date of the training, both inclusive.
        chunk: steps, latitudes and longitudes of a chunk.
        shard: the same for an object, which holds several chunks; null: one object each.
        levels: those of variables with levels; each becomes a variable, as temperature_500.
    """
    command = {"command": "netcdf", **locals()}  # for a repair
    paths: list[str] = []
    for pattern in files:
        found = sorted(glob.glob(pattern))  # noqa: PTH207 (pathlib takes no absolute pattern)
        if not found:
            raise UserError(f"--files: there is no {pattern}")
        paths += found
    command["files"] = paths  # files that come later are not part of this store
    # Closed here: HDF5 may crash when Python closes a file while a thread reads another one.
    with open_files(paths, (shard or chunk)[0], variables) as fields:
        # So that a build of other files, or of corrected ones, does not continue this one.
        fields.attrs = {"files": str(sorted(map(version, paths)))}
        # Not the other coordinates: ERA5's expver is a text for each month, and a curved grid has
        # lat and lon beside its axes y and x.
        fields = named_axes(fields.reset_coords(drop=True))
        # NOAA's sea-surface temperature has an axis zlev, of one depth.
        known = (*AXES, "level")
        spare = [a for a, size in fields.sizes.items() if size == 1 and a not in known]
        fields = fields.squeeze(spare, drop=True)
        fields = fields.transpose("time", "lat", "lon", ..., missing_dims="ignore")
        fields = select(fields, variables, str(files), levels)
        build(url, fields, chunk, train_period, command, shard)


def version(file: str) -> tuple[str, int, int]:
    """A file's name, size and time."""
    status = Path(file).stat()
    return file, status.st_size, status.st_mtime_ns


def cube(
    url: str = "s3://embedded/cube.zarr",
    months: PositiveInt = 120,
    height: PositiveInt = 180,
    width: PositiveInt = 360,
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
    command = {"command": "cube", **locals()}
    fields = cube_fields((months, height, width), chunk)
    dates = fields["time"].dt.strftime("%Y-%m").values
    train_period = (dates[0], dates[months * 4 // 5 - 1])
    build(url, fields, chunk, train_period, command, shard)


def pack(url: str, chunk: Window) -> None:
    """Add a copy with all variables in each chunk: a window of all needs fewer requests.

    Run it again after values of the store were corrected: no reader notices an old copy. Raises
    UserError if the store has something else of the name "packed"; a damaged one is replaced.

    Args:
        url: a store that is finished, without levels, and without chunks left out for land.
        chunk: time steps, latitudes and longitudes of a chunk of the copy.
    """
    fields = open_fields(open_store(url), chunks={})
    if "level" in fields.dims:
        raise UserError(f"{url}: pack takes no levels")
    fields = select(fields, None, url)
    dims = ("variable", *AXES)
    shape = (len(fields), *[fields.sizes[axis] for axis in AXES])
    about = {"chunk": chunk, "variables": list(fields), "grid": grid_of(fields)}
    store = open_store(f"{url}/packed", read_only=False)
    with contextlib.suppress(FileNotFoundError, *DECODING_ERRORS):
        # r+: a read-only store takes metadata that are refused for absent.
        if not about.keys() <= zarr.open(store, mode="r+").attrs.keys():
            raise UserError(f"{url}/packed: it is no copy of ours, and would be lost")
    group = zarr.create_group(store, attributes=about, overwrite=True)
    copy = group.create_array(
        "fields",
        shape=shape,
        chunks=(len(fields), *map(min, chunk, shape[1:])),
        dtype="float32",
        fill_value=math.nan,
        compressors=ZstdCodec(level=0, checksum=True),
        dimension_names=dims,
        config={"write_empty_chunks": True},
    )

    # Some steps at a time: dask's tasks for all of a large store would take gigabytes. Whole chunks
    # of the store and of the copy, so that none is read or written twice.
    steps = copy.chunks[1]
    for field in fields.values():
        steps = math.lcm(steps, field.chunksizes["time"][0])
    for first in tqdm(range(0, shape[1], steps), url, disable=None):
        region = slice(first, min(first + steps, shape[1]))
        # Whatever the store's order: FastDataset takes windows of a copy in this one.
        part = fields.isel(time=region).to_dataarray().transpose(*dims)
        blocks = part.data.astype("float32").rechunk(copy.chunks)
        blocks.store(copy, regions=(slice(None), region), lock=False)
    # At last: without them, nobody takes the copy for finished.
    zarr.consolidate_metadata(store)


def check(url: str, repair: bool = False) -> None:
    """Name the chunks of a store that are missing or damaged: of fields, statistics, copies.

    Reads the whole store. The exit code is 1 if there are any.

    Args:
        url: the store.
        repair: build them again, from the store's source.
    """
    bad = damage(url)
    for key in bad:
        print(f"damaged or missing: {key}")
    if not bad:
        print(f"{url}: all chunks are there")
    elif repair:
        mend(url, bad)
        check(url)
    else:
        sys.exit(1)


def mend(url: str, bad: list[str]) -> None:
    """Build the damaged parts of a store again."""
    if not all(key.startswith(("packed/", "statistics/")) for key in bad):
        attributes = zarr.open_group(open_store(url), mode="r").attrs
        command: Any = attributes.get("command")
        if not command:
            text = "get its chunks again from where it comes from"
            raise UserError(f"{url}: no command of ours has built it; {text}")
        note_damaged_regions(url, bad)
        build_again = COMMANDS[command.pop("command")]
        build_again(**command | {"url": url})
    mend_statistics(url, bad)
    if "packed/zarr.json" in bad:
        raise UserError(
            f"{url}/packed: its chunk is not known any more; run pack again"
        )
    if any(key.startswith("packed/") for key in bad):
        about: Any = zarr.open_group(open_store(f"{url}/packed"), mode="r").attrs
        pack(url, about["chunk"])


COMMANDS: dict[str, Any] = {
    "ocean": build_ocean,
    "netcdf": netcdf,
    "cube": cube,
    "statistics": add_statistics,
    "pack": pack,
    "check": check,
}


def main() -> None:
    """Run the subcommand."""
    # Client() connects to the address in this variable.
    with (
        Client()
        if os.environ.get("DASK_SCHEDULER_ADDRESS")
        else contextlib.nullcontext()
    ):
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
