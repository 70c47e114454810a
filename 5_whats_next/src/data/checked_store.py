"""A Zarr store whose reads end in time, and in which a lost chunk raises."""

import asyncio
import functools
import math
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import s3fs
import xarray as xr
import zarr
from botocore.exceptions import ClientError, ConnectionError
from dotenv import load_dotenv
from zarr.abc.store import ByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from src.run.errors import UserError

# In the index of a shard: there is no such chunk.
NO_CHUNK = b"\xff" * 16
METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
# A request that has been silent for so long is tried again.
SILENT_SECONDS = 5
BOTO_SETTINGS = {
    # s3fs does the retries: botocore's own ones in them would multiply.
    "connect_timeout": 2,
    "read_timeout": SILENT_SECONDS,
    # In botocore's final form: it rewrites this dict, and for a changed one fsspec would open a
    # second session.
    "retries": {"total_max_attempts": 1, "mode": "legacy"},
    # At the same time; more requests wait. The default is ten.
    "max_pool_connections": 256,
    # Google's S3 interface, and older versions of MinIO and Ceph, refuse uploads with the checksums
    # that the libraries of AWS now add to all of them. Our chunks have their own.
    # https://github.com/boto/boto3/issues/4392
    # https://github.com/aws/aws-sdk-java-v2/issues/5987
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}


def is_busy(error: Exception) -> bool:
    """Whether a server may answer later: it throttles its clients (429), or has failed."""
    if not isinstance(error, ClientError):
        return False
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status == 429 or status >= 500


@functools.cache
def configure_libraries() -> None:
    """Keys of .env, and what s3fs is told for the whole process; once is enough."""
    # Of the chapter and of the folder round it, and not of any above. What is set already stays.
    for folder in Path(__file__).parents[2:4]:
        load_dotenv(folder / ".env")
    # Busy servers and broken connections are tried again by s3fs, with growing pauses. It stops at
    # this number, or after a store's patience, whichever comes first.
    s3fs.S3FileSystem.retries = 10
    s3fs.core.add_retryable_error(ConnectionError)
    s3fs.core.set_custom_error_handler(is_busy)
    # Zarr 3 does not specify consolidated metadata yet. Without them, a reader has to list the
    # bucket. https://github.com/zarr-developers/zarr-python/pull/2556
    warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")


class NoStoreError(UserError):
    """The server answers: there is no store at this place, or none that is finished."""


class ChunkError(UserError):
    """The server answers, and a chunk is missing or damaged."""


class CheckedStore(WrapperStore[Store]):
    """Ends a read after ``patience`` seconds, retries included; raises for a missing chunk.

    A chunk that does not exist means one full of the fill value in Zarr, so what a failed write or
    a careless delete has lost would read as land.
    """

    def __init__(self, store: Store, url: str, patience: float) -> None:
        super().__init__(store)
        self.url, self.patience = url, patience
        self.denied: list[str] = []  # what the server said when it refused metadata
        # The arrays of which a missing chunk is land (allow_land).
        self.land: set[str] = set()
        # The arrays that have shards.
        self.sharded: dict[str, zarr.Array] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy in a loader's worker or on a dask cluster, whose libraries have their defaults."""
        configure_libraries()
        self.__dict__.update(state)

    def _with_store(self, store: Store) -> "CheckedStore":
        """The same for another store: Zarr calls it for a read-only copy."""
        other = CheckedStore(store, self.url, self.patience)
        # The same objects, which open_fields and allow_land look at and fill.
        other.denied = self.denied
        other.land = self.land
        other.sharded = self.sharded
        return other

    def allow_land(self, fields: xr.Dataset) -> None:
        """Let missing chunks of these fields read as land: a lost one is not noticed any more.

        Many stores have no chunks without a value. Raises UserError if the chunks would read as
        numbers: Zarr's fill value, which need not be the one that means land (_FillValue).
        """
        group: Any = zarr.open_group(self, mode="r")
        for field in fields.values():
            array = field.encoding["array"]
            fill = group[array].fill_value
            land = [field.encoding.get(key) for key in ("_FillValue", "missing_value")]
            if fill is None or not (np.isnan(fill) or fill in land):
                text = f"missing chunks of {array} read as {fill}, and not as land"
                raise UserError(f"{self.url}: {text}")
            self.land.add(array)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """The object, or a part of it; None if it is absent. A failed request is tried again."""
        is_metadata = key.endswith(METADATA)
        try:
            async with asyncio.timeout(self.patience):
                value = await self._store.get(key, prototype, byte_range)
        except TimeoutError as error:
            raise UserError(
                f"{self.url}: no answer in {self.patience:g} s ({key})"
            ) from error
        except Exception as error:
            # S3 answers 403, not 404, for an absent object if the reader may not list. So a reader
            # takes a refused metadata file for absent. A writer must not: it could overwrite a
            # store that it cannot see.
            if isinstance(error, PermissionError) and is_metadata and self.read_only:
                self.denied.append(str(error))
                return None
            raise UserError(
                f"{self.url}: {type(error).__name__} {error} ({key})"
            ) from error
        if key.partition("/")[0] in self.land:
            return value
        # A writer may ask for a chunk that it has not written yet.
        if value is None and self.read_only and not is_metadata:
            raise ChunkError(f"{self.url}: chunk {key} is missing")
        # The end of a shard, or all of it. Zarr fills a chunk that is not in its index.
        is_part = byte_range and not isinstance(byte_range, SuffixByteRequest)
        name = key.partition("/c/")[0]
        if value is not None and name in self.sharded and not is_part:
            self.check_shard(key, value.to_bytes())
        return value

    async def get_ranges(self, *arguments: Any, **settings: Any) -> AsyncIterator[Any]:
        """Several chunks of a shard, each through get; newer zarr (Python 3.12 on) calls it."""
        zarr_store: Any = Store
        try:
            async for chunks in zarr_store.get_ranges(self, *arguments, **settings):
                yield chunks
        except BaseExceptionGroup as group:
            # The chunks are read side by side. One error, as for a chunk by itself.
            if failed := group.subgroup(UserError):
                raise failed.exceptions[0] from group
            raise

    def add_shards(self, name: str) -> None:
        """Watch an array's shards from now on.

        Raises UserError if a shard's index is not where check_shard looks for it.
        """
        array = zarr.open_array(self, path=name, mode="r")
        metadata: Any = array.metadata
        sharding, *others = metadata.codecs
        # An Enum in older versions of zarr.
        is_at_end = str(sharding.index_location).endswith("end")
        if others or metadata.encode_chunk_key((0, 0)) != "c/0/0" or not is_at_end:
            text = "shards of another layout: a lost chunk would read as a gap"
            raise UserError(f"{self.url}: {name} has {text}")
        self.sharded[name] = array

    def check_shard(self, key: str, value: bytes) -> None:
        """Raise UserError if the index at the end of a shard misses a chunk."""
        name, _, place = key.partition("/c/")
        array = self.sharded[name]
        num_chunks = 1
        num_inside = 1
        numbers = map(int, place.split("/"))
        for number, size, chunk, shard in zip(
            numbers, array.shape, array.chunks, array.shards or (), strict=True
        ):
            num_chunks *= shard // chunk
            values_left = min(shard, size - number * shard)
            num_inside *= math.ceil(values_left / chunk)
        # 16 bytes for each chunk, and a checksum. Nobody has written those beyond the edges.
        index = value[-16 * num_chunks - 4 :]
        if index.count(NO_CHUNK) > num_chunks - num_inside:
            raise ChunkError(f"{self.url}: a chunk in {key} is missing")
