"""Write fields to a Zarr store, so that a half-written store cannot pass for a whole one.

A store is finished when its attribute ``complete`` says so, which is written last. Objects appear
whole or not at all, so what is there after a kill is right, and the build goes on with the rest.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import dask
import iris_sample_data
import numpy as np
import xarray as xr
import zarr
from filelock import FileLock
from tqdm import tqdm
from zarr.core.sync import sync

from src.data.cloud_errors import CloudError
from src.data.cloud_fields import COMPLETE
from src.data.cloud_statistics import compute_statistics, has_statistics, write_statistics
from src.data.cloud_store import CheckedStore, open_store
from src.data.netcdf import AXES, check_axes, open_fields
from src.data.s3_server import FOLDER

OCEAN = "s3://embedded/ocean.zarr"
OCEAN_CHUNK = (54, 18, 72)  # windows of 12 of 54 months start anywhere: whole columns of time


def build_store(
    url: str,
    fields: xr.Dataset,
    train_months: tuple[int, int],
    chunk: Sequence[int],
    shard: Sequence[int] | None = None,
    threads: int = 2,
    overwrite: bool = False,
    anonymous: bool = False,
) -> CheckedStore:
    """Write ``fields`` and their statistics to ``url``, or what an earlier try has left to do.

    A complete store gets what it has lost, and the statistics of another training period.

    Args:
        url: as ``open_store`` takes it.
        fields: over (time, lat, lon); dask arrays are computed region by region.
        train_months: first month and first month after the end, for the statistics.
        chunk: months, latitudes and longitudes of a chunk.
        shard: the same for an object that holds many chunks; None makes each chunk an object.
        threads: chunks that are computed and written at the same time.
        overwrite: replace another store at this place.
        anonymous: without credentials.
    """
    check_axes(fields)
    fields = fields.transpose(*AXES)
    start, end = train_months
    if not 0 <= start < end <= fields.sizes["time"]:
        raise CloudError(
            f"train_months: {[start, end]} is not a period within the {fields.sizes['time']} "
            "months of the data"
        )
    chunk = tuple(min(c, size) for c, size in zip(chunk, shape_of(fields), strict=True))
    whole = tuple(shard or chunk)
    if any(s % c for s, c in zip(whole, chunk, strict=True)):
        raise CloudError(f"shard: {list(whole)} is no multiple of the chunk {list(chunk)}")
    store = open_store(url, anonymous, writable=True)
    state = state_of(store, fields, overwrite, chunk, shard)
    if state == "new":
        write_template(store, fields, chunk, shard)
    write_regions(store, fields, whole, threads)
    if state == "complete" and has_statistics(store, train_months):
        return store
    # Not with the store for writing: for it a chunk may be missing.
    written = xr.open_zarr(open_store(url, anonymous), chunks=None, consolidated=False)
    written.attrs.pop(COMPLETE)
    written = written[sorted(map(str, written.data_vars))]  # a folder lists its arrays in any order
    write_statistics(store, compute_statistics(written, train_months, whole, threads))
    zarr.open_group(store, mode="r+").attrs[COMPLETE] = True
    return store


def state_of(
    store: CheckedStore,
    fields: xr.Dataset,
    overwrite: bool,
    chunk: Sequence[int] | None = None,
    shard: Sequence[int] | None = None,
) -> str:
    """Whether the store is new, begun or complete. Raises CloudError if it is another one."""
    try:
        with store.in_a_hurry():
            group = zarr.open_group(store, mode="r+" if overwrite else "r")
    except FileNotFoundError:
        if overwrite or sync(store.is_empty("")):
            return "new"
        raise CloudError(
            f"{store.url}: there is something else here; --overwrite replaces it"
        ) from None
    if overwrite:
        group.attrs[COMPLETE] = False  # whatever happens while it is deleted
        return "new"
    found, arrays = dict(group.attrs), dict(group.arrays())
    complete = found.pop(COMPLETE, None)
    # A kill in write_template leaves some out; the values come after all of them.
    missing = {str(name) for name in fields.variables} - set(arrays)
    if (
        complete is None
        or as_json(found) != as_json(fields.attrs)
        or (complete and missing)
        or not all(
            fits(arrays[n], fields[n], chunk, shard) for n in map(str, fields) if n in arrays
        )
    ):
        raise CloudError(f"{store.url}: there is another store here; --overwrite replaces it")
    return "complete" if complete else "new" if missing else "begun"


def as_json(attributes: Mapping[Any, Any]) -> str:
    return json.dumps(attributes, sort_keys=True, default=lambda value: np.asarray(value).tolist())


def fits(
    array: zarr.Array, field: xr.DataArray, chunk: Sequence[int] | None, shard: Sequence[int] | None
) -> bool:
    """Whether the array has the size of the field, and the chunks that it would be written with."""
    chunks = chunk is None or (array.chunks, array.shards) == (tuple(chunk), shard and tuple(shard))
    return chunks and array.shape == field.shape


def write_template(
    store: CheckedStore, fields: xr.Dataset, chunk: Sequence[int], shard: Sequence[int] | None
) -> None:
    """Write all but the values: shapes, types, coordinates, attributes."""
    encoding: dict[str, dict[str, Any]] = {
        str(name): {"chunks": tuple(chunk), "dtype": "float32", "_FillValue": np.nan}
        for name in fields.data_vars
    }
    if shard:
        for settings in encoding.values():
            settings["shards"] = tuple(shard)
    fields.assign_attrs({COMPLETE: False}).to_zarr(
        store,
        mode="w",
        compute=False,
        encoding=encoding,
        zarr_format=3,
        consolidated=False,
        write_empty_chunks=True,
    )


def write_regions(
    store: CheckedStore, fields: xr.Dataset, whole: Sequence[int], threads: int
) -> None:
    """Write the objects that are missing, some months at a time; memory does not grow with T."""
    names = [str(name) for name in fields.data_vars]
    values = fields[names].drop_vars(list(fields.coords))
    there = {name: existing(store, name) for name in names}
    across = [range(-(-n // w)) for n, w in zip(shape_of(fields)[1:], whole[1:], strict=True)]
    starts = range(0, fields.sizes["time"], whole[0])
    for number, start in enumerate(tqdm(starts, unit="region", desc=store.url, disable=None)):
        needed = {f"c/{number}/{row}/{column}" for row, column in product(*across)}
        todo = [name for name in names if needed - there[name]]
        if not todo:
            continue
        region = slice(start, min(start + whole[0], fields.sizes["time"]))
        part = values[todo].isel(time=region).chunk(dict(zip(AXES, whole, strict=True)))
        with dask.config.set(scheduler="threads", num_workers=threads):
            part.to_zarr(
                store,
                region={"time": region, "lat": slice(None), "lon": slice(None)},
                mode="r+",
                consolidated=False,
                write_empty_chunks=True,
            )


def existing(store: CheckedStore, name: str) -> set[str]:
    """The keys of the objects of an array, without its name."""

    async def keys() -> set[str]:
        return {key.removeprefix(f"{name}/") async for key in store.list_prefix(f"{name}/c/")}

    return sync(keys())


def objects_of(
    fields: xr.Dataset, chunk: Sequence[int], shard: Sequence[int] | None
) -> tuple[int, int]:
    """Number of objects, and bytes before compression, as float32."""
    shape, variables = shape_of(fields), len(fields.data_vars)
    each = np.prod([-(-n // s) for n, s in zip(shape, shard or chunk, strict=True)], dtype=int)
    return int(each) * variables, int(np.prod(shape, dtype=int)) * 4 * variables


def shape_of(fields: xr.Dataset) -> tuple[int, int, int]:
    return fields.sizes["time"], fields.sizes["lat"], fields.sizes["lon"]


def ocean_fields() -> xr.Dataset:
    """Chapter 0's real sea-surface temperature, with a note of where it comes from."""
    path = Path(iris_sample_data.path) / "ostia_monthly.nc"
    fields = open_fields(path, ["surface_temperature"])
    notes: Mapping[str, str] = {
        "source": "OSTIA, British Crown copyright, Open Government Licence",
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    fields = fields.drop_vars([name for name in fields.coords if name not in AXES])
    return fields.assign_attrs(notes)


def provide_ocean(url: str, train_months: tuple[int, int]) -> None:
    """Build the ocean store on the embedded server, if it is this one that is asked for."""
    if url == OCEAN:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with FileLock(FOLDER / "build.lock"):  # the ranks of a torchrun job come at the same time
            fields, store = ocean_fields(), open_store(url)
            # What a complete store has lost is an error for its readers, and not made good here.
            complete = state_of(store, fields, overwrite=False) == "complete"
            if not (complete and has_statistics(store, train_months)):
                build_store(url, fields, train_months, OCEAN_CHUNK)
