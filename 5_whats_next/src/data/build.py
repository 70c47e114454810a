"""Write fields to a Zarr store, one region of the time axis after the other.

Objects appear whole or not at all. A region is a row of objects along time. When it is written, a
marker in the store's folder `regions` says so: a build that was stopped goes on with the next one.
Delete a marker, and the same command writes that region again.
"""

import math
import warnings
from typing import Any

import xarray as xr
import zarr
from tqdm import tqdm
from zarr.codecs import BloscCodec, Crc32cCodec

from src.data.fields import AXES
from src.data.pytorch_dataset import ocean_fields
from src.data.statistics import add_statistics
from src.data.store import OCEAN, CheckedStore, open_store, read_file, write_file
from src.data.windows import Period, Window, find_period
from src.run.errors import UserError


def build(
    url: str,
    fields: xr.Dataset,
    chunk: Window,
    train_period: Period,
    shard: Window | None = None,
) -> None:
    """Write variables over (time, lat, lon) and their statistics, or what an earlier try left.

    Args:
        url: where to.
        fields: the variables; dask arrays are computed region by region.
        chunk: time steps, latitudes and longitudes of a chunk.
        train_period: first and last date of the training, both inclusive.
        shard: the same for an object, which holds several chunks; None: each holds one.

    Raises:
        UserError: something else is at this place, or there are no data of that period.
    """
    find_period(fields.indexes["time"], train_period)  # before hours of work
    fields = fields.transpose(*AXES).drop_encoding()
    fields = fields.drop_vars(set(fields.coords) - set(AXES))
    shape = tuple(fields.sizes[axis] for axis in AXES)
    size = tuple(map(min, chunk, shape))
    sizes = {"chunks": size, "shards": shard}
    fields = fields.chunk(dict(zip(AXES, shard or size, strict=True)))
    period = fields["time"].values[[0, -1]].astype(str)
    fields.attrs["made_of"] = f"{list(fields)} {shape} {sizes} {period} {fields.attrs}"
    store = open_store(url, read_only=False)
    begin(store, fields, sizes)

    values = fields.drop_vars(AXES)  # the axes are written already
    steps = fields.chunksizes["time"][0]
    for start in tqdm(range(0, shape[0], steps), url, unit="region", disable=None):
        if not read_file(store, f"regions/{start}"):
            region = {"time": slice(start, start + steps)}
            # Land, too: a chunk that is not there has to mean one that was lost.
            part = values.isel(region)
            part.to_zarr(store, region=region, write_empty_chunks=True)
            write_file(store, f"regions/{start}", b"written")
    # The end: without statistics no training begins.
    add_statistics(url, train_period)


def begin(store: CheckedStore, fields: xr.Dataset, sizes: dict[str, Any]) -> None:
    """Describe the arrays and write the axes, unless it is done. Raises as build does."""
    try:
        group = zarr.open_group(store, mode="r+")
    except FileNotFoundError:
        # One object, with its attributes: however early a build is killed, the next one knows it.
        group = zarr.create_group(store, attributes=fields.attrs)
    if group.attrs.get("made_of") != fields.attrs["made_of"]:
        raise UserError(
            f"{store.url}: something else is here; delete it, or choose another place"
        )
    if read_file(store, "regions/axes"):
        return
    # lz4 decodes several times as fast as zstd, zarr's default. Without a checksum most flipped
    # bits decode to other numbers.
    codec = {"compressors": [BloscCodec(cname="lz4"), Crc32cCodec()]}
    numbers = {"dtype": "float32", "_FillValue": math.nan}
    encoding: dict[str, Any] = {}
    for name in map(str, fields.variables):
        if name in group:  # a kill may have left it
            del group[name]
        encoding[name] = codec | sizes | numbers if name in fields else codec
    with warnings.catch_warnings():
        # Without consolidated metadata, which Zarr 3 does not specify yet, a reader has to list.
        warnings.filterwarnings("ignore", "Consolidated metadata")
        fields.to_zarr(
            store,
            mode="a",
            compute=False,
            encoding=encoding,
            zarr_format=3,
        )
    write_file(store, "regions/axes", b"written")


def build_ocean(
    url: str = OCEAN, train_period: Period = ("2006-04", "2008-09")
) -> None:
    """Chapter 0's real ocean, unless it is there.

    Args:
        url: where to; s3://embedded/NAME, s3://BUCKET/NAME, gs://BUCKET/NAME or a folder.
        train_period: first and last date of the training, both inclusive.
    """
    # Windows of 12 of 54 months start anywhere, so a chunk has all months.
    build(url, ocean_fields(), (54, 18, 72), train_period)
