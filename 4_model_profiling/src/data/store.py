"""Zarr stores on S3, GCS, any storage of fsspec, or a disk.

s3://embedded/NAME     the S3 server of this chapter, which starts by itself (s3_server.py)
s3://BUCKET/NAME       any other S3; keys, AWS_ENDPOINT_URL and AWS_REGION from the environment or
                       .env; or a profile, AWS_PROFILE
gs://BUCKET/NAME       Google Cloud Storage; uv sync --group gcs
FOLDER                 a local path
filecache::URL         with a copy of what was read on the local disk; also blockcache::
"""

import asyncio
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import fsspec
import numpy as np
import xarray as xr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from zarr.storage import FsspecStore, LocalStore

from src.data.checked_store import (
    BOTO_SETTINGS,
    CheckedStore,
    ChunkError,
    NoStoreError,
    configure_libraries,
)
from src.data.chunks import DECODING_ERRORS, check_chunks
from src.data.s3_server import BUCKET, connect
from src.run.errors import UserError

AXES = ("time", "lat", "lon")
# What public stores and CF call them, in lower case.
AXIS_NAMES = {
    "time": ("time", "valid_time"),
    "level": ("level", "pressure_level", "isobaricinhpa", "plev", "lev", "depth"),
    "lat": ("lat", "latitude", "y"),
    "lon": ("lon", "longitude", "x"),
}
Levels = Sequence[float] | None
MissingChunks = Literal["error", "land"]
# For fsspec's caches: one thread may look for a file while another writes down what is there.
ONE_AT_A_TIME = asyncio.Semaphore(1)


def open_store(
    url: str, patience: float = 60, anonymous: bool = False, read_only: bool = True
) -> CheckedStore:
    """The store at ``url``, which need not exist yet. Raises UserError for a wrong address."""
    configure_libraries()
    if "://" not in url:
        return CheckedStore(LocalStore(url, read_only=read_only), url, patience)
    options: dict[str, Any] = {
        "anon": anonymous,
        # Otherwise s3fs asks for the size of each object first: two requests for a chunk.
        # https://github.com/fsspec/s3fs/issues/1027
        "max_concurrency": 1,
        "config_kwargs": BOTO_SETTINGS,
    }
    # Of the environment, boto reads AWS_DEFAULT_REGION alone; TensorStore and others read this.
    if region := os.environ.get("AWS_REGION"):
        options["client_kwargs"] = {"region_name": region}
    if f"s3://{BUCKET}/" in url:  # perhaps behind filecache::
        server = connect()
        options |= {
            "key": server["AWS_ACCESS_KEY_ID"],
            "secret": server["AWS_SECRET_ACCESS_KEY"],
            # Tests and chapter 3's slow network put a proxy in between.
            "endpoint_url": os.environ.get("EMBEDDED_S3_ENDPOINT")
            or server["AWS_ENDPOINT_URL"],
        }
    # 0: what is there stays for ever. The default is a week.
    cache = {"cache_storage": "output/cache", "expiry_time": 0}
    options_of = {
        "s3": options,
        "gs": {"token": "anon"} if anonymous else {},
        "filecache": cache,
        "blockcache": cache,
    }
    # A chain such as filecache::s3 takes options for each of its protocols.
    protocols = re.split(r"::|://", url)
    by_protocol = {name: options_of[name] for name in options_of if name in protocols}
    try:
        fs, path = fsspec.core.url_to_fs(
            url, asynchronous="::" not in url, **by_protocol
        )
    except (ImportError, ValueError) as error:
        raise UserError(f"{url}: {error}") from error
    if "::" in url:  # the caches of fsspec are synchronous
        fs = AsyncFileSystemWrapper(fs, asynchronous=True, semaphore=ONE_AT_A_TIME)
    return CheckedStore(FsspecStore(fs, read_only, path), url, patience)


def open_fields(store: CheckedStore, chunks: Any = None) -> xr.Dataset:
    """The variables of a store, and its axes; values are read when they are asked for.

    Raises NoStoreError if there is no store, or one that is not finished.
    """
    lazy = open_lazily(store, chunks)
    if lazy.attrs.get("regions_left"):
        raise NoStoreError(
            f"{store.url} is not finished: run its build_store.py command again"
        )
    axes = [name for name in lazy.coords if name in lazy.dims]
    # Without a grid's further coordinates, which may be large, and have the names of axes.
    lazy = lazy.drop_vars(set(lazy.coords) - set(axes))
    for name, field in lazy.items():
        if field.encoding.get("shards"):
            store.add_shards(str(name))
    load_axes(store, lazy, axes)
    # Dates are decoded in the axes alone: a field may count days since a date, too.
    decoded = xr.decode_cf(lazy[axes], mask_and_scale=False)
    return named_axes(lazy.assign_coords(decoded.coords))


def open_lazily(
    store: CheckedStore, chunks: Any = None, consolidated: bool | None = None
) -> xr.Dataset:
    """A store as xarray opens it, but for its axes, which are not read yet, and have no dates.

    Raises NoStoreError if there is no store, or one that should be consolidated, and is not;
    UserError if the server denies access.
    """
    try:
        return xr.open_zarr(
            store,
            chunks=chunks,
            consolidated=consolidated,
            # Otherwise xarray reads the axes here, one after the other, and time three times.
            create_default_indexes=False,
            decode_times=False,
        )
    except PermissionError as error:  # to list what is not consolidated
        raise access_denied(store, error) from error
    except FileNotFoundError as error:
        if store.denied:
            raise access_denied(store, store.denied[0]) from error
        text = "there is no Zarr store; build_store.py makes one"
        raise NoStoreError(f"{store.url}: {text}") from error
    except ValueError as error:
        if consolidated:  # these metadata are written last
            raise NoStoreError(f"{store.url} is not finished: {error}") from error
        raise UserError(f"{store.url}: {error}") from error  # such as an unknown codec


def access_denied(store: CheckedStore, reason: object) -> UserError:
    """The error for a server that refuses access, with its reason."""
    return UserError(
        f"{store.url}: access denied (403, {reason}): wrong keys, no store, "
        "or no right to list one that is not consolidated"
    )


def load_together(store: CheckedStore, fields: xr.Dataset, names: list[Any]) -> None:
    """Load variables of a lazy dataset, side by side: each of them waits for the store.

    Raises ChunkError if a chunk is lost or damaged.
    """
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda name: fields.variables[name].load(), names))
    except DECODING_ERRORS:
        check_chunks(store, [(name, None) for name in names])
        raise


def load_axes(store: CheckedStore, fields: xr.Dataset, axes: list[Any]) -> None:
    """Load the axes. Raises ChunkError if a chunk is lost or damaged."""
    try:
        load_together(store, fields, axes)
    except ChunkError:
        # Zarr writes no chunk of zeros, such as that of the first date in chunks of one date. If
        # another chunk is missing, its zeros make the steps between the values uneven, or all zero.
        store.land.update(axes)
        load_together(store, fields, axes)
        store.land.difference_update(axes)
        for axis in axes:
            steps = np.diff(fields[axis].values)
            step = np.median(steps) if len(steps) else 1
            if step == 0 or not np.allclose(steps, step, rtol=0.2):
                check_chunks(store, [(axis, None)])


def named_axes(fields: xr.Dataset) -> xr.Dataset:
    """The same fields with axes called time, level, lat and lon, in the order of the store."""
    names: dict[Any, str] = {}
    for axis, others in AXIS_NAMES.items():
        for name in fields.dims:
            # Of two such names, the first one is the axis.
            if str(name).lower() in others and axis not in names.values():
                names[name] = axis
    fields = fields.rename(names)
    for old, axis in names.items():
        if axis in fields.coords:
            # Without a unit, this is all that is known of it. A copy that we build keeps it.
            fields[axis].attrs.setdefault("stored_name", old)
    return fields


def select(
    fields: xr.Dataset, names: list[str] | None, url: str, levels: Levels = None
) -> xr.Dataset:
    """These variables, or all; each level of one that has levels is a variable.

    Their encoding gets the array that each is from, its axes, and the number of its level: this is
    what another reader than xarray has to know.

    Args:
        fields: with the axes of named_axes.
        names: of variables in the store; None takes all that have time, lat and lon.
        url: for messages.
        levels: values of the axis level; variables are called temperature_500 then.

    Raises:
        UserError: a variable or a level is missing, or an axis.
    """
    on_grid = [str(name) for name in fields if set(AXES) <= set(fields[name].dims)]
    names = names or sorted(on_grid) or list(map(str, fields))
    if missing := [name for name in names if name not in fields]:
        raise UserError(f"variables: {missing} not in {url}, which has {list(fields)}")

    selected = {}
    for name in names:
        field = fields[name]
        extra = set(field.dims) - set(AXES)
        if name not in on_grid or extra - {"level"}:
            raise UserError(
                f"{url}: the axes of {name} are {field.dims}, "
                "and not time, lat, lon in some order, perhaps with level"
            )
        field.encoding |= {"array": name, "axes": field.dims, "level": None}
        if not extra:
            selected[name] = field
            continue
        values = field["level"].values.tolist()
        if not levels or not set(levels) <= set(values):
            raise UserError(f"levels: {name} in {url} has {values}; name some of them")
        for level in levels:
            number = values.index(level)
            layer = field.isel(level=number, drop=True)
            layer.encoding |= {**field.encoding, "level": number}
            selected[f"{name}_{level:g}"] = layer
    return xr.Dataset(selected, attrs=fields.attrs)
