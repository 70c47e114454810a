"""Stores of files on S3, GCS or a disk: opened by their address, and asked again while they fail.

s3://embedded/NAME     the S3 server of this chapter, which starts by itself (s3_server.py)
s3://BUCKET/NAME       any other S3; keys, profile, AWS_ENDPOINT_URL and AWS_REGION from the
                       environment or .env
gs://BUCKET/NAME       Google Cloud Storage; uv sync --inexact --group gcs
FOLDER                 a local path
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import fsspec
import s3fs  # noqa: F401 (here, because fsspec would import it while a store is opened)
from aiohttp import ClientError
from botocore import exceptions as boto
from dotenv import load_dotenv
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from src.data.s3_server import BUCKET, connect
from src.run.errors import UserError

# The store of the default run; build.py makes it.
OCEAN = f"s3://{BUCKET}/ocean.zarr"
# A chunk of a field is named after its place along several axes: c/0/3/1, or 0.3.1 in Zarr 2.
FIELD_CHUNK = re.compile(r"\d[/.]\d+$")
REFUSED = (PermissionError, boto.NoCredentialsError)
# A server that is down, or throttles its clients, may answer later.
BUSY = (OSError, boto.ConnectionError, boto.HTTPClientError, ClientError)


def embedded_server(url: str) -> dict[str, str]:
    """Address and keys of this chapter's own server, which starts if it has to.

    Empty for all other URLs. The names are those of the environment variables of AWS.
    """
    if not url.startswith(f"s3://{BUCKET}/"):
        return {}
    server = dict(connect())
    # Tests and chapter 3's slow network put a proxy in between.
    if proxy := os.environ.get("EMBEDDED_S3_ENDPOINT"):
        server["AWS_ENDPOINT_URL"] = proxy
    return server


def load_environment() -> None:
    """Read the file .env of the chapter, and that of the folder round it; what is set stays."""
    for folder in Path(__file__).parents[2:4]:
        load_dotenv(folder / ".env")


def file_system(
    url: str,
    anonymous: bool = False,
    asynchronous: bool = False,
    read_timeout: float = 20,
    max_concurrency: int = 4,
    attempts: int = 5,
) -> tuple[Any, str]:
    """What fsspec reads and writes with at ``url``, and its path.

    Args:
        url: any of fsspec, and those above.
        anonymous: send no keys.
        asynchronous: for callers in an event loop, as Zarr is.
        read_timeout: seconds after which a silent S3 has failed.
        max_concurrency: parts of a large object that are on their way at the same time.
        attempts: how often boto asks S3; s3fs does so `retries` times, which is five.

    Raises:
        UserError: the address is wrong, or a package for it is missing.
    """
    load_environment()
    scheme = url.partition("://")[0]
    options: dict[str, Any] = {}
    if scheme == "s3":
        server = embedded_server(url)
        options = {
            "anon": anonymous,
            # None: as boto finds them.
            "key": server.get("AWS_ACCESS_KEY_ID"),
            "secret": server.get("AWS_SECRET_ACCESS_KEY"),
            "endpoint_url": server.get("AWS_ENDPOINT_URL"),
            # boto reads AWS_DEFAULT_REGION alone; TensorStore and others read this one.
            "client_kwargs": {"region_name": os.environ.get("AWS_REGION")},
            # In the buckets of some data providers those who read pay for it.
            "requester_pays": "AWS_REQUEST_PAYER" in os.environ,
            "max_concurrency": max_concurrency,
            "config_kwargs": {
                "connect_timeout": 5,
                "read_timeout": read_timeout,
                "retries": {"total_max_attempts": attempts, "mode": "legacy"},
                # At the same time; more requests wait. The default is ten.
                "max_pool_connections": 256,
                # Google's S3 interface, and older versions of MinIO and Ceph, refuse the checksums
                # that the libraries of AWS add: https://github.com/boto/boto3/issues/4392
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            },
        }
    elif scheme == "gs" and anonymous:
        options = {"token": "anon"}
    elif scheme in ("file", url):  # a disk needs its folders made
        options = {"auto_mkdir": True}
    try:
        return fsspec.url_to_fs(url, asynchronous=asynchronous, **options)
    except (ImportError, ValueError) as error:
        raise UserError(f"{url}: {error}") from error


class CheckedStore(WrapperStore[Store]):
    """A Zarr store that asks again for ``patience`` seconds, and raises for a missing chunk.

    A chunk that does not exist means one full of the fill value in Zarr, so what a failed write or
    a careless delete has lost would read as land. ``has_land`` says that it is land.
    """

    def __init__(
        self, store: Store, url: str, patience: float, has_land: bool = False
    ) -> None:
        super().__init__(store)
        self.url = url
        self.patience = patience
        self.has_land = has_land

    def _with_store(self, store: Store) -> "CheckedStore":
        """The same for another store: Zarr calls it for a read-only copy."""
        return CheckedStore(store, self.url, self.patience, self.has_land)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """The object, or a part of it; None if it is absent, and no chunk of a field."""
        # A writer may ask for a chunk that it has not written yet.
        is_chunk = self.read_only and FIELD_CHUNK.search(key)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.patience
        reason = "silence"
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    value = await self._store.get(key, prototype, byte_range)
                break
            except REFUSED as error:
                # S3 answers 403, not 404, for an absent object if the reader may not list. A writer
                # must not take it for absent: it could overwrite a store that it cannot see.
                if self.read_only and not is_chunk:
                    return None
                raise UserError(f"{self.url}: {error} ({key})") from error
            except BUSY as error:
                if clock() > deadline:
                    text = f"no answer in {self.patience:g} s ({key}): {reason}"
                    raise UserError(f"{self.url}: {text}") from error
                reason = repr(error)
                await asyncio.sleep(1)
        if value is None and is_chunk and not self.has_land:
            raise UserError(f"{self.url}: chunk {key} is missing")
        return value


def open_store(
    url: str,
    patience: float = 60,
    anonymous: bool = False,
    read_only: bool = True,
    has_land: bool = False,
) -> CheckedStore:
    """The store at ``url``, which need not exist yet. Raises UserError for a wrong address."""
    if "://" not in url:
        store: Store = LocalStore(url, read_only=read_only)
    else:
        fs, path = file_system(
            url,
            anonymous,
            asynchronous=True,
            read_timeout=5,
            attempts=1 if read_only else 5,
            # Otherwise s3fs asks for the size of each chunk first: two requests for one.
            # https://github.com/fsspec/s3fs/issues/1027
            max_concurrency=1,
        )
        if read_only:
            # CheckedStore alone asks again: attempts of boto and s3fs would multiply. (In a
            # loader's worker s3fs has its five again.)
            fs.retries = 1
        store = FsspecStore(fs, read_only, path)
    return CheckedStore(store, url, patience, has_land)


def read_file(store: CheckedStore, key: str) -> bytes | None:
    """A small file beside the arrays of a store; None if it is not there."""
    value = sync(store.get(key, default_buffer_prototype()))
    return value.to_bytes() if value else None


def write_file(store: CheckedStore, key: str, content: bytes) -> None:
    """Write it: it appears whole or not at all."""
    buffer = default_buffer_prototype().buffer.from_bytes(content)
    sync(store.set(key, buffer))
