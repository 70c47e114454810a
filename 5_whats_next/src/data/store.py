"""Zarr stores on S3, GCS, any storage of fsspec, or a disk, read so that no fault goes unseen."""

# s3://embedded/NAME     the S3 server of this chapter, which starts by itself (s3_server.py)
# s3://BUCKET/NAME       any other S3; keys and AWS_ENDPOINT_URL from the environment or .env
# gs://BUCKET/NAME       Google Cloud Storage; uv sync --group gcs
# FOLDER                 a local path
# filecache::URL         with a copy of what was read on the local disk; also blockcache::

import asyncio
import functools
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import fsspec
import s3fs
import xarray as xr
import zarr
from botocore.exceptions import ClientError, ConnectionError
from dotenv import load_dotenv
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from src.data.s3_server import BUCKET, connect
from src.errors import UserError

AXES = ("time", "lat", "lon")
AXES_WANTED = "and not time, lat, lon in some order, perhaps with level"
# What public stores and CF call them, in lower case.
AXIS_NAMES = {
    "time": ("time", "valid_time"),
    "level": ("level", "pressure_level", "isobaricinhpa", "plev", "lev", "depth"),
    "lat": ("lat", "latitude", "y"),
    "lon": ("lon", "longitude", "x"),
}
Levels = Sequence[float] | None
# Names of arrays, and which part of each; None means all of it.
Parts = Iterable[tuple[str, Sequence[slice] | None]]
DECODING_ERRORS = (RuntimeError, ValueError)  # of zarr's codecs
METADATA_LIMIT = 5.0  # seconds; metadata come first: a wrong address is found soon
METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


def status(error: Exception) -> int:
    """The status code of an S3 server's answer; 0 for other errors."""
    answer = error.response if isinstance(error, ClientError) else {}
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@functools.cache
def configure_libraries() -> None:
    """What s3fs and zarr can only be told for the whole process; once is enough."""
    # Busy servers and broken connections are tried again by s3fs, with growing pauses. It stops at
    # this number, or after a store's patience, whichever comes first.
    s3fs.S3FileSystem.retries = 10
    s3fs.core.add_retryable_error(ConnectionError)
    s3fs.core.set_custom_error_handler(lambda error: status(error) >= 500)
    # A chunk that does not exist means one full of the fill value in Zarr, so what a failed write
    # or a careless delete has lost reads as land. Newer versions of zarr (from Python 3.12 on) know
    # this setting; for older ones CheckedStore does the same.
    zarr.config.set({"array.read_missing_chunks": False})


class DamageError(UserError):
    """Chunks are there, and cannot be decoded."""


class CheckedStore(WrapperStore[Store]):
    """Ends a read after ``patience`` seconds, retries included; raises for a missing chunk."""

    def __init__(self, store: Store, url: str, patience: float) -> None:
        super().__init__(store)
        self.url, self.patience = url, patience

    def _with_store(self, store: Store) -> "CheckedStore":
        """The same for another store: Zarr calls it for a read-only copy."""
        return CheckedStore(store, self.url, self.patience)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        patience = (
            min(self.patience, METADATA_LIMIT)
            if key.endswith(METADATA)
            else self.patience
        )
        try:
            async with asyncio.timeout(patience):
                value = await self._store.get(key, prototype, byte_range)
        except TimeoutError as error:
            raise UserError(
                f"{self.url}: no answer in {patience:g} s ({key})"
            ) from error
        except Exception as error:
            raise UserError(
                f"{self.url}: {type(error).__name__} {error} ({key})"
            ) from error
        # Only for readers: who writes may look for a chunk that is yet to be written.
        if value is None and self.read_only and not key.endswith(METADATA):
            raise UserError(f"{self.url}: chunk {key} is missing")
        return value


def open_store(
    url: str, patience: float = 60, anonymous: bool = False, read_only: bool = True
) -> CheckedStore:
    """The store at ``url``, which need not exist yet. Raises UserError for a wrong address."""
    configure_libraries()
    if "://" not in url:
        return CheckedStore(LocalStore(url, read_only=read_only), url, patience)
    fs, path = file_system(url, anonymous)
    # S3 denies access to what does not exist, if the reader may not list the bucket.
    absent = (FileNotFoundError, *([PermissionError] if anonymous else []))
    return CheckedStore(FsspecStore(fs, read_only, path, absent), url, patience)


def file_system(
    url: str,
    anonymous: bool = False,
    asynchronous: bool = True,
    read_timeout: float = 2,
) -> tuple[AsyncFileSystem, str]:
    """What reads and writes at ``url``, and its path. Raises UserError for a wrong address."""
    configure_libraries()
    # The address may have any protocol of fsspec. Asynchronous is for callers in an event loop, as
    # Zarr is. A server that stays silent for read_timeout seconds has failed.
    load_dotenv()  # .env in this folder or above; what is set already stays
    # s3fs does the retries: botocore's own ones inside of them would multiply.
    client = {
        "connect_timeout": 2,
        "read_timeout": read_timeout,
        "retries": {"max_attempts": 0},
    }
    options: dict[str, Any] = {
        "anon": anonymous,
        # Otherwise s3fs asks for the size of each object first: two requests for a chunk.
        # https://github.com/fsspec/s3fs/issues/1027
        "max_concurrency": 1,
        "config_kwargs": client,
    }
    if f"s3://{BUCKET}/" in url:  # perhaps behind filecache::
        server = connect()
        options |= {
            "key": server["AWS_ACCESS_KEY_ID"],
            "secret": server["AWS_SECRET_ACCESS_KEY"],
            # Tests and chapter 3's slow network put a proxy in between.
            "endpoint_url": os.environ.get("EMBEDDED_S3_ENDPOINT")
            or server["AWS_ENDPOINT_URL"],
        }
    known = {"s3": options, "gs": {"token": "anon"} if anonymous else {}}
    known |= {"file": {"auto_mkdir": True}}  # a disk needs its folders made
    known |= {
        name: {"cache_storage": "output/cache"} for name in ("filecache", "blockcache")
    }
    # A chain such as filecache::s3 takes options for each of its protocols.
    by_protocol = {
        name: known[name] for name in known if name in re.split(r"::|://", url)
    }
    try:
        is_async = asynchronous and "::" not in url
        fs, path = fsspec.core.url_to_fs(url, asynchronous=is_async, **by_protocol)
    except (ImportError, ValueError) as error:
        raise UserError(f"{url}: {error}") from error
    if not fs.async_impl:  # disks, and the caches of fsspec
        fs = AsyncFileSystemWrapper(fs, asynchronous=asynchronous)
    return fs, path


def explained(error: Exception, store: CheckedStore, parts: Parts) -> Exception:
    """A DamageError that names the chunks, of these parts of arrays; or else the same error."""
    bad = {key for name, region in parts for key in bad_chunks(store, name, region)}
    if not bad:
        return error
    advice = "build_store.py check --url URL --repair true makes them anew"
    return DamageError(f"{store.url}: damaged chunks {sorted(bad)}; {advice}")


def bad_chunks(
    store: CheckedStore, name: str, region: Sequence[slice] | None = None
) -> Iterator[str]:
    """The keys of an array's chunks that are missing or damaged; reads them one by one."""
    array = zarr.open_array(store, path=name, mode="r")
    region = region or [slice(0, size) for size in array.shape]
    numbers = []  # of the chunks along each axis
    for part, size, chunk in zip(region, array.shape, array.chunks, strict=True):
        first = part.start // chunk
        stop = math.ceil(part.stop / chunk)
        # A window may go on beyond the last column, with the first ones.
        count = math.ceil(size / chunk)
        numbers.append(sorted({number % count for number in range(first, stop)}))
    for place in itertools.product(*numbers):
        try:
            array.blocks[place]
        except (UserError, *DECODING_ERRORS):
            yield f"{name}/{array.metadata.encode_chunk_key(place)}"


def open_fields(
    store: CheckedStore, chunks: Any = None, consolidated: bool | None = None
) -> xr.Dataset:
    """The variables of a store; values are read when they are asked for.

    Raises UserError if there is no store, or one that is not finished.
    """
    try:
        fields = xr.open_zarr(store, chunks=chunks, consolidated=consolidated)
    except FileNotFoundError as error:
        raise UserError(
            f"{store.url}: there is no Zarr store; build_store.py makes one"
        ) from error
    except DECODING_ERRORS as error:  # of the axes, which are read now
        arrays = zarr.open_group(store, mode="r").arrays()
        axes = [(name, None) for name, array in arrays if array.ndim == 1]
        raise explained(error, store, axes) from None
    if fields.attrs.get("regions_left"):
        raise UserError(
            f"{store.url} is not finished: run its build_store.py command again"
        )
    return named_axes(fields)


def named_axes(fields: xr.Dataset) -> xr.Dataset:
    """The same fields with axes called time, level, lat and lon, in the order of the store."""
    # Without a grid's further coordinates, which may have these names.
    fields = fields.reset_coords(drop=True)
    names: dict[Any, str] = {}
    for axis, others in AXIS_NAMES.items():
        found = [name for name in fields.dims if str(name).lower() in others]
        names |= dict.fromkeys(found[:1], axis)
    return fields.rename(names)


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
                f"{url}: the axes of {name} are {field.dims}, {AXES_WANTED}"
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
