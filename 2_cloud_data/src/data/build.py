"""Write fields to a Zarr store, so that a half-written store cannot pass for a whole one."""

# Objects appear whole or not at all. The store counts the regions that are left to write; a build
# that was killed goes on with them. Statistics, which a training asks for, are written last.

import itertools
import math
from typing import Any

import dask
import xarray as xr
import zarr
from filelock import FileLock
from jsonargparse.typing import PositiveFloat
from tqdm import tqdm
from tqdm.dask import TqdmCallback
from zarr.codecs import ZstdCodec

from src.data.checked_store import CheckedStore, ChunkError, NoStoreError
from src.data.chunks import check_chunks
from src.data.pytorch_dataset import ocean_fields
from src.data.s3_server import FOLDER
from src.data.statistics import (
    array_of,
    check_dates,
    grid_of,
    lazy_statistics,
    open_statistics,
    statistics_url,
)
from src.data.store import AXES, MissingChunks, open_fields, open_store, select
from src.data.windows import Period, Window, find_period
from src.run.errors import UserError

OCEAN = "s3://embedded/ocean.zarr"


def build(
    url: str,
    fields: xr.Dataset,
    chunk: Window,
    train_period: Period,
    command: dict[str, Any] | None = None,
    patience: PositiveFloat = 60,
) -> None:
    """Write variables over (time, lat, lon) and their statistics, or what an earlier try left.

    Dask arrays are computed chunk by chunk; a region is as many steps as a chunk.

    Args:
        url: where to.
        fields: the variables.
        chunk: time steps, latitudes and longitudes of a chunk.
        train_period: first and last date of the training, both inclusive.
        command: the subcommand of build_store.py and its arguments, for a repair.
        patience: seconds that a read may take, with all retries.

    Raises:
        UserError: something else is at this place, an axis has no coordinates, or dates are
            missing.
    """
    check_axes(fields, train_period)  # before hours of writing
    fields = fields.transpose(*AXES).drop_encoding()
    fields = fields.drop_vars(set(fields.coords) - set(AXES))
    chunks = {
        axis: min(size, fields.sizes[axis])
        for axis, size in zip(AXES, chunk, strict=True)
    }
    starts = range(0, fields.sizes["time"], chunks["time"])
    period = fields["time"].values[[0, -1]].astype(str)
    made_of = f"{list(fields)} {dict(fields.sizes)} {period} in chunks of {chunks}, {fields.attrs}"
    attributes = {"made_of": made_of, "regions_left": len(starts), "command": command}
    fields = fields.chunk(chunks).assign_attrs(attributes)
    store = open_store(url, patience, read_only=False)
    group = open_or_begin(store, fields)
    progress: Any = group.attrs
    # A stopped build goes on at the first region that is missing, a repair at the first damaged.
    first_missing = len(starts) - progress["regions_left"]
    first_damaged = progress.get("first_damaged_region", first_missing)
    first_region = min(first_missing, first_damaged)
    if first_region == 0:
        create_arrays(store, group, fields, chunks)
        group = zarr.open_group(store, mode="r+")  # it has consolidated metadata now

    if first_region < len(starts):
        print(f"{url}: {size_of(fields)}", flush=True)
    # Each variable of a region needs its axis, time. The axes are written already.
    values = fields.drop_vars(AXES)
    regions = range(first_region, len(starts))
    for number in tqdm(regions, url, unit="region", disable=None):
        region = slice(starts[number], starts[number] + chunks["time"])
        # Land, too: a chunk that is not there has to mean one that was lost.
        values.isel(time=region).to_zarr(
            store, region={"time": region}, write_empty_chunks=True
        )
        group.attrs["regions_left"] = len(starts) - number - 1
    group.attrs.pop("first_damaged_region", None)
    add_statistics(url, train_period, patience=patience)


def check_axes(fields: xr.Dataset, train_period: Period) -> None:
    """Refuse axes without coordinates, dates that do not rise, and a date that is missing."""
    nameless = set(AXES) - set(fields.coords)
    if nameless:
        raise UserError(f"no coordinates of {sorted(nameless)}: assign_coords, first")
    time = fields.indexes["time"]
    check_dates(time, slice(0, len(time)))
    find_period(time, train_period)


def size_of(fields: xr.Dataset) -> str:
    """Bytes and objects of dask arrays, in words."""
    num_values = len(fields) * math.prod(fields.sizes.values())
    gigabytes = 4 * num_values / 1e9
    objects = sum(field.data.npartitions for field in fields.values())
    return f"{gigabytes:.3f} GB before compression, {objects:,} objects"


def open_or_begin(store: CheckedStore, fields: xr.Dataset) -> zarr.Group:
    """What an earlier build of these fields has left, or a new group. Raises as build does."""
    try:
        group = zarr.open_group(store, mode="r+")
    except FileNotFoundError:
        # One object, with its attributes: however early a build is killed, the next one knows it.
        group = zarr.create_group(store, attributes=dict(fields.attrs))
    if group.attrs.get("made_of") != fields.attrs["made_of"]:
        raise UserError(
            f"{store.url}: something else is here; delete it, or choose another place"
        )
    return group


def create_arrays(
    store: CheckedStore, group: zarr.Group, fields: xr.Dataset, chunks: dict[str, int]
) -> None:
    """Write the axes, and the descriptions of arrays of which no value is written yet."""
    for name in map(str, fields.variables):
        # A kill may have left some of them. Statistics, and further copies, are not touched.
        if name in group:
            del group[name]
    settings = {
        "chunks": tuple(chunks.values()),
        "dtype": "float32",
        "_FillValue": math.nan,
    }
    encoding = with_checksums(fields)
    for field in fields:
        encoding[field] |= settings
    fields.to_zarr(store, mode="a", compute=False, encoding=encoding, zarr_format=3)


def with_checksums(fields: xr.Dataset) -> dict[Any, dict[str, Any]]:
    """How xarray is to compress each array: one flipped bit makes its chunk unreadable."""
    # Without the checksum, which is zarr's default, most flipped bits decode to other numbers.
    compressor = ZstdCodec(level=0, checksum=True)
    return {name: {"compressors": [compressor]} for name in fields.variables}


def in_blocks(fields: xr.Dataset) -> xr.Dataset:
    """The same fields for dask, in blocks of whole chunks: about 8 MB, or one larger chunk."""
    blocks = fields.copy()
    for name, field in fields.items():
        if not field.ndim:  # such as the description of a projection
            continue
        # Larger ones than the chunks: each block is a task of dask, which takes memory. Of whole
        # chunks: each block with a part of a chunk would read all of it.
        first, *others = field.encoding["chunks"]
        chunk_bytes = first * math.prod(others) * field.dtype.itemsize
        block = (first * max(1, 2**23 // chunk_bytes), *others)
        blocks[name] = field.chunk(dict(zip(field.dims, block, strict=True)))
    return blocks


def add_statistics(
    url: str,
    train_period: Period,
    variables: list[str] | None = None,
    to: str | None = None,
    anonymous: bool = False,
    levels: list[float] | None = None,
    again: bool = False,
    missing_chunks: MissingChunks = "error",
    patience: PositiveFloat = 60,
) -> None:
    """The statistics of a training period, for a store that is there.

    Args:
        url: the store.
        train_period: first and last date of the training, both inclusive.
        variables: which of its variables; null takes all.
        to: another store to put them into, where this one cannot be written to.
        anonymous: read public data, without credentials.
        levels: which values of the axis level; each makes a variable.
        again: also of variables that have statistics, because their values have changed.
        missing_chunks: what it means that the store has no such chunk: that it was lost, or land.
        patience: seconds that a read may take, with all retries.
    """
    store = open_store(url, patience, anonymous)
    fields = select(in_blocks(open_fields(store)), variables, url, levels)
    if missing_chunks == "land":
        store.allow_land(fields)
    time = fields.indexes["time"]
    steps = find_period(time, train_period)
    check_dates(time, steps)  # before hours of computing
    place = statistics_url(to or url, train_period)
    # Groups, through which check finds the statistics. They also show, before hours of computing,
    # whether we may write here.
    for group in filter(None, (to, place.rpartition("/")[0], place)):
        zarr.open_group(open_store(group, patience, read_only=False), mode="a")
    about: dict[str, Any] = {"grid": grid_of(fields)}
    if to:
        about["url"] = url.rpartition("::")[2]  # without filecache::

    missing = []
    for name, field in fields.items():
        statistics_store = open_store(f"{place}/{name}", patience)
        if again or not has_statistics(statistics_store, fields, url):
            missing.append(field)
    # One array at a time: all of them at once would need gigabytes for dask's tasks. Its levels
    # together: they may lie in the same chunks, which are read once.
    for array, levels_of_array in itertools.groupby(missing, array_of):
        lazy = {}
        for field in levels_of_array:
            lazy[f"{place}/{field.name}"] = lazy_statistics(field, steps)
        with TqdmCallback(desc=f"statistics of {array}", unit="task", disable=None):
            (computed,) = dask.compute(lazy)
        for place_of_field, statistics in computed.items():
            statistics_store = open_store(place_of_field, patience, read_only=False)
            write_statistics(statistics_store, statistics.assign_attrs(about))


def has_statistics(store: CheckedStore, fields: xr.Dataset, url: str) -> bool:
    """Whether they are there, finished and whole. Raises UserError if they cannot be read now."""
    try:
        statistics = open_statistics(store, fields, url)
        check_chunks(store, [(str(name), None) for name in statistics])
    except (NoStoreError, ChunkError):
        return False
    return True


def write_statistics(store: CheckedStore, statistics: xr.Dataset) -> None:
    """Write those of one variable. Raises UserError if it is constant or has no value."""
    std = float(statistics["std"])
    if not (math.isfinite(std) and std > 0):
        raise UserError(
            f"{store.url}: standard deviation {std}: there is nothing to learn"
        )
    statistics.to_zarr(
        store,
        mode="w",
        zarr_format=3,
        write_empty_chunks=True,
        encoding=with_checksums(statistics),
    )


def build_ocean(
    url: str = OCEAN,
    train_period: Period = ("2006-04", "2008-09"),
    patience: PositiveFloat = 60,
) -> None:
    """Chapter 0's real ocean, unless it is there.

    Args:
        url: where to; s3://embedded/NAME, s3://BUCKET/NAME, gs://BUCKET/NAME or a folder.
        train_period: first and last date of the training, both inclusive.
        patience: seconds that a read may take, with all retries.
    """
    command = {"command": "ocean", **locals()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / "build.lock"):  # two runs may start at the same time
        # Windows of 12 of 54 months start anywhere, so a chunk has all months.
        chunk = (54, 18, 72)
        build(url, ocean_fields(), chunk, train_period, command, patience=patience)
