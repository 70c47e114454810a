"""Write fields to a Zarr store, so that a half-written store cannot pass for a whole one."""

# Objects appear whole or not at all. The store counts the regions that are left to write; a build
# that was killed goes on with them. Statistics, which a training asks for, are written last.

import math
from typing import Any

import dask
import xarray as xr
import zarr
from filelock import FileLock
from tqdm import tqdm

from src.data.pytorch_dataset import ocean_fields
from src.data.s3_server import FOLDER
from src.data.statistics import compute_statistics, read_statistics, statistics_url
from src.data.store import AXES, open_fields, open_store, select
from src.data.windows import Period, Window, find_period
from src.errors import UserError

OCEAN = "s3://embedded/ocean.zarr"
# Windows of 12 of 54 months start anywhere, so a chunk has all months.
OCEAN_CHUNK = (54, 18, 72)


def build(url: str, fields: xr.Dataset, chunk: Window, train_period: Period) -> None:
    """Write variables over (time, lat, lon) and their statistics, or what an earlier try left.

    Dask arrays are computed chunk by chunk; a region is as many months as a chunk. Raises UserError
    if something else is at this place.
    """
    fields = (
        fields.transpose(*AXES)
        .drop_encoding()
        .drop_vars(set(fields.coords) - set(AXES))
    )
    chunks = {
        axis: min(c, fields.sizes[axis]) for axis, c in zip(AXES, chunk, strict=True)
    }
    starts = range(0, fields.sizes["time"], chunks["time"])
    period = fields["time"].values[[0, -1]].astype(str)
    made_of = f"{list(fields)} {dict(fields.sizes)} {period} in chunks of {chunks}, {fields.attrs}"
    fields = fields.chunk(chunks)
    store = open_store(url, read_only=False)
    try:
        group = zarr.open_group(store, mode="r+")
    except FileNotFoundError:
        settings = {
            "chunks": (*chunks.values(),),
            "dtype": "float32",
            "_FillValue": math.nan,
        }
        encoding = dict.fromkeys(fields, settings)
        fields.to_zarr(
            store, mode="w-", compute=False, encoding=encoding, zarr_format=3
        )
        group = zarr.open_group(store, mode="r+")
        group.attrs.update(made_of=made_of, regions_left=len(starts))
    if group.attrs.get("made_of") != made_of:
        raise UserError(
            f"{url}: something else is here; delete it, or choose another place"
        )

    left: Any = group.attrs["regions_left"]
    if left:
        size = 4 * math.prod(fields.sizes.values()) * len(fields) / 1e9
        objects = sum(field.data.npartitions for field in fields.values())
        print(f"{url}: {size:.3f} GB before compression, {objects:,} objects")
    # Each variable of a region needs its axis, time. The axes are written already.
    values = fields.drop_vars(AXES)
    for number in tqdm(
        range(len(starts) - left, len(starts)), url, unit="region", disable=None
    ):
        region = slice(starts[number], starts[number] + chunks["time"])
        # Land, too: a chunk that is not there has to mean one that was lost.
        values.isel(time=region).to_zarr(
            store, region={"time": region}, write_empty_chunks=True
        )
        group.attrs["regions_left"] = len(starts) - number - 1
    add_statistics(url, train_period)


def add_statistics(
    url: str,
    train_period: Period,
    variables: list[str] | None = None,
    to: str | None = None,
    anonymous: bool = False,
) -> None:
    """The statistics of a training period, for a store that is there.

    Args:
        url: the store.
        train_period: first and last date of the training, both inclusive.
        variables: which of its variables; null takes all.
        to: another store to put them into, where this one cannot be written to.
        anonymous: read public data, without credentials.
    """
    # Larger blocks than the store's chunks: fewer tasks of dask, each of which takes memory.
    with dask.config.set({"array.chunk-size": "8MiB"}):
        fields = open_fields(open_store(url, anonymous=anonymous), chunks="auto")
    fields = select(fields, variables, url)
    find_period(fields.indexes["time"], train_period)  # before hours of computing
    place = statistics_url(to or url, train_period)
    try:
        read_statistics(open_store(place), list(map(str, fields)))
    except UserError:  # they are not there, or not finished
        statistics = compute_statistics(fields, train_period)
        store = open_store(place, read_only=False)
        statistics.to_zarr(store, mode="w", zarr_format=3, write_empty_chunks=True)


def build_ocean(train_period: Period) -> None:
    """Build the store of the default run, unless it is there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / "build.lock"):  # two runs may start at the same time
        build(OCEAN, ocean_fields(), OCEAN_CHUNK, train_period)
