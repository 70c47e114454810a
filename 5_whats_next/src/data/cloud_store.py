"""Open a Zarr store by its URL, and read it so that no fault passes for data.

  s3://embedded/NAME     the S3 server that this chapter starts by itself (s3_server.py)
  s3://BUCKET/NAME       any other S3: AWS, MinIO, R2, Ceph; .env.example says how to name it
  gs://, az://, https:// whatever fsspec has a package for
  FOLDER                 a local path

In Zarr a chunk that does not exist stands for one full of the fill value, so what a failed write or
a careless delete has lost reads as land. ``CheckedStore`` raises instead.
"""

import asyncio
import atexit
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec
import numpy as np
from botocore.exceptions import BotoCoreError
from dotenv import load_dotenv
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay
from tenacity.wait import wait_random_exponential
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from src.data.cloud_errors import CloudError, explain, may_pass
from src.data.s3_server import BUCKET, ServerError, connect

OPENING = 7.0  # seconds to try to open a store; a wrong address should not take longer to find out
SILENCE = 10.0  # seconds without a byte, after which a request has failed
METADATA = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}
COUNTERS = ("requests", "retries", "bytes")
Result = TypeVar("Result")


class CheckedStore(WrapperStore[Store]):
    """A store that retries what may pass, gives up in time, and raises for a missing chunk.

    Args:
        store: where the objects are.
        url: its name in messages.
        patience: seconds to go on trying when a request fails.
        counts: (3,) integers that count requests, retries and bytes.
        writable: chunks may be missing: they are about to be written.
        anonymous: may not list the bucket; S3 then denies access to what does not exist.
    """

    def __init__(
        self,
        store: Store,
        url: str = "",
        patience: float = 60.0,
        counts: np.ndarray | None = None,
        writable: bool = False,
        anonymous: bool = False,
    ) -> None:
        super().__init__(store)
        self.url, self.patience, self.writable = url, patience, writable
        self.anonymous = anonymous
        self.counts = np.zeros(len(COUNTERS), np.int64) if counts is None else counts

    def _with_store(self, store: Store) -> "CheckedStore":
        return CheckedStore(
            store, self.url, self.patience, self.counts, self.writable, self.anonymous
        )

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        is_metadata = key.rpartition("/")[2] in METADATA
        try:
            value = await self.insist(key, lambda: self._store.get(key, prototype, byte_range))
        except CloudError as error:
            # https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
            if not (
                self.anonymous and is_metadata and isinstance(error.__cause__, PermissionError)
            ):
                raise
            value = None
        if value is not None:
            self.counts[2] += len(value)
        elif not self.writable and not is_metadata:
            array, _, chunk = split_key(key)
            raise CloudError(f"{self.url}: chunk {chunk} of the array {array} is missing")
        return value

    async def set(self, key: str, value: Buffer) -> None:
        await self.insist(key, lambda: self._store.set(key, value), "writing")

    async def exists(self, key: str) -> bool:
        return await self.insist(key, lambda: self._store.exists(key), "looking for")

    async def is_empty(self, prefix: str) -> bool:
        return await self.insist(prefix, lambda: self._store.is_empty(prefix), "listing")

    async def delete_dir(self, prefix: str) -> None:
        await self.insist(prefix, lambda: self._store.delete_dir(prefix), "deleting")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in await self.listing(prefix, lambda: self._store.list_prefix(prefix)):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for key in await self.listing(prefix, lambda: self._store.list_dir(prefix)):
            yield key

    async def listing(self, prefix: str, names: Callable[[], AsyncIterator[str]]) -> list[str]:
        """All names at once, so that a listing that breaks off can begin anew."""

        async def collect() -> list[str]:
            return [name async for name in names()]

        return await self.insist(prefix, collect, "listing")

    async def insist(
        self, key: str, request: Callable[[], Awaitable[Result]], doing: str = "reading"
    ) -> Result:
        """The result of the request, tried again with growing pauses while there is hope."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(may_pass),
            stop=stop_before_delay(self.patience),
            wait=wait_random_exponential(multiplier=0.1, max=5),
            before_sleep=self.count_retry,
            reraise=True,
        )

        async def once() -> Result:
            self.counts[0] += 1
            async with asyncio.timeout(self.patience):
                return await request()

        try:
            return await retrying(once)
        except Exception as error:
            limit = min(SILENCE, self.patience)
            raise CloudError(f"{self.url}: {explain(error, limit)} ({doing} {key})") from error

    @contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """Little patience while a store is opened: a wrong address should soon be found out."""
        patience, self.patience = self.patience, min(self.patience, OPENING)
        try:
            yield
        finally:
            self.patience = patience

    def count_retry(self, state: RetryCallState) -> None:
        self.counts[1] += 1

    # Newer versions of zarr have more ways to read, which WrapperStore would send round ``get``.
    _supports_sync_io = False

    async def get_ranges(
        self, key: str, byte_ranges: Any, *, prototype: BufferPrototype, **_: Any
    ) -> AsyncIterator[Any]:
        parts = (self.get(key, prototype, part) for part in byte_ranges)
        yield list(enumerate(await asyncio.gather(*parts)))

    async def _get_many(self, requests: Any) -> Any:
        """Not the wrapped store's own, which would go round ``get``."""
        for request in requests:
            yield request[0], await self.get(*request)

    async def get_partial_values(self, prototype: BufferPrototype, key_ranges: Any) -> Any:
        return [await self.get(key, prototype, part) for key, part in key_ranges]


def split_key(key: str) -> tuple[str, str, str]:
    """The array and the chunk of a key: ``sst/c/0/1`` (Zarr v3) or ``sst/0.1`` (v2)."""
    return key.rpartition("/c/") if "/c/" in key else key.rpartition("/")


def open_store(
    url: str,
    anonymous: bool = False,
    patience: float = 60.0,
    counts: np.ndarray | None = None,
    writable: bool = False,
) -> CheckedStore:
    """The store at ``url``; see this file's first lines. Raises CloudError with one line."""
    protocol = fsspec.utils.get_protocol(url)
    if urlsplit(url).password:
        raise CloudError(f"{protocol}: credentials do not belong into a URL; see .env.example")
    try:
        if protocol == "file":
            store: Store = LocalStore(url.removeprefix("file://"), read_only=not writable)
        else:
            fs, path = file_system(url, protocol, anonymous)
            store = FsspecStore(fs, path=path, read_only=not writable)
    except (ImportError, ValueError, ServerError, BotoCoreError) as error:
        raise CloudError(f"{url}: {explain(error)}") from error
    return CheckedStore(store, url, patience, counts, writable, anonymous)


def file_system(url: str, protocol: str, anonymous: bool) -> tuple[AsyncFileSystem, str]:
    """The fsspec file system of a URL, and the path in it."""
    load_dotenv()  # .env in this folder or above; what is set already stays
    # fsspec would not notice that the variables of the environment have changed.
    options: dict[str, Any] = {"skip_instance_cache": True}
    if protocol in ("s3", "s3a"):
        options |= {
            "anon": anonymous,
            # Else s3fs asks for the size of an object first, to read a large one in parts: two
            # requests for each chunk (https://github.com/fsspec/s3fs/issues/1027).
            "max_concurrency": 1,
            # This module retries; retries within retries would take 25 times as long.
            "config_kwargs": {
                "connect_timeout": 3,
                "read_timeout": SILENCE,
                "retries": {"max_attempts": 0},
                "max_pool_connections": 64,
            },
        }
        if url.partition("://")[2].partition("/")[0] == BUCKET:
            own = connect()
            options |= {
                "key": own["AWS_ACCESS_KEY_ID"],
                "secret": own["AWS_SECRET_ACCESS_KEY"],
                # slow_network.py stands in front of it.
                "endpoint_url": os.environ.get("EMBEDDED_S3_ENDPOINT") or own["AWS_ENDPOINT_URL"],
                "skip_instance_cache": False,  # another store there takes the same connections
            }
    elif protocol in ("gs", "gcs"):
        options |= {"token": "anon"} if anonymous else {}
    fs, path = fsspec.core.url_to_fs(url, asynchronous=True, **options)
    fs.retries = 1
    if hasattr(fs, "set_session"):  # it takes a second, which is no fault of the first request
        sync(fs.set_session())
    atexit.register(close, fs)
    return (fs if fs.async_impl else AsyncFileSystemWrapper(fs, asynchronous=True)), path


def close(fs: AsyncFileSystem) -> None:
    """Close the connections, about which aiohttp would complain at the end of the process."""
    if client := getattr(fs, "_s3", None):
        with suppress(Exception):
            sync(client.close())
