"""A folder in object storage: files put whole and checked, each request within a deadline."""

import asyncio
import hashlib
import math
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, cast
from urllib.parse import urlsplit

from fsspec.utils import get_protocol
from s3fs.utils import FileExpired
from tenacity import Retrying, retry_if_exception, stop_after_delay
from tenacity.wait import wait_random_exponential
from zarr.core.sync import sync

from src.checkpoint_files import digest
from src.data.cloud_errors import CloudError, explain, may_pass
from src.data.cloud_store import file_system
from src.data.s3_server import ServerError

FileSystem = Literal["s3", "gcs", "abfs", "local"]
PROTOCOLS = {
    "s3": ("s3", "s3a"),
    "gcs": ("gs", "gcs"),
    "abfs": ("abfs", "abfss", "az"),
    "local": ("file",),
}
PART = 16 * 2**20  # bytes of one part of a multipart upload
LONGEST_PAUSE = 5.0  # seconds between two attempts
STALL, SLOWEST = 20.0, 2**18  # seconds, bytes a second: an attempt that takes longer has stalled
Result = TypeVar("Result")


def full_url(url: str, filesystem: FileSystem) -> str:
    """The URL with its protocol. Raises CloudError if it is one of another file system."""
    parts = urlsplit(url)
    if parts.password or (parts.username and filesystem != "abfs"):  # abfs: container@account
        raise CloudError(f"cloud_storage_path: {CREDENTIALS}")
    allowed = PROTOCOLS[filesystem]
    if "://" not in url and filesystem != "local":
        url = f"{allowed[0]}://{url}"
    if (found := get_protocol(url)) not in allowed:
        raise CloudError(
            f"cloud_storage_path: {url} is no address of filesystem {filesystem}; "
            f"allowed: {', '.join(f'{name}://' for name in allowed)}, or another filesystem "
            f"({', '.join(name for name, known in PROTOCOLS.items() if found in known) or 'none'})"
        )
    if filesystem == "local":  # whole, so that what is printed serves from everywhere
        url = f"file://{Path(url.removeprefix('file://')).expanduser().absolute()}"
    return url.rstrip("/")


CREDENTIALS = "credentials do not belong into a URL; see .env.example"


def filesystem_of(url: str) -> FileSystem:
    """The name of a URL's file system. Raises CloudError for one that is not known."""
    protocol = get_protocol(url)
    for name, known in PROTOCOLS.items():
        if protocol in known:
            return cast(FileSystem, name)
    allowed = ", ".join(f"{known[0]}://" for known in PROTOCOLS.values())
    raise CloudError(f"{url}: {protocol}:// is unknown; allowed: {allowed}")


class CloudFolder:
    """What the checkpoints need of a storage, and nothing more.

    Args:
        url: of the folder, with its protocol; s3://embedded/ is this project's own server.
        filesystem: of the URL.

    Raises:
        CloudError: the address makes no sense, or the file system's package is missing.
    """

    def __init__(self, url: str, filesystem: FileSystem = "s3") -> None:
        self.url, self.is_local = full_url(url, filesystem), filesystem == "local"
        try:
            if self.is_local:
                self.path = str(Path(self.url.removeprefix("file://")).resolve())
                Path(self.path).mkdir(parents=True, exist_ok=True)
            self.fs, path = file_system(self.url, get_protocol(self.url), anonymous=False)
        except (ImportError, ValueError, OSError, ServerError) as error:
            raise CloudError(f"{self.url}: {explain(error)}") from error
        self.path = self.path if self.is_local else path.rstrip("/")
        self.cancelled = False  # an attempt that fails is the last one

    def insist(
        self,
        what: str,
        seconds: float,
        request: Callable[[], Awaitable[Result]],
        each: float = math.inf,
    ) -> Result:
        """The result of a request, tried again until the time is over.

        The limit is one for all: each attempt is cut off where it ends. A limit for the answer
        alone is not enough; an upload of which each byte arrives in time may still never end.

        Args:
            what: for the message.
            seconds: for all attempts.
            request: makes one.
            each: seconds for each of them.
        """
        deadline = time.monotonic() + seconds

        def once() -> Result:
            left = max(0.1, deadline - time.monotonic())
            return sync(asyncio.wait_for(request(), min(left, each)))

        def is_last(state: object) -> bool:
            return self.cancelled or stop_after_delay(seconds)(state)  # type: ignore[arg-type]

        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            stop=is_last,
            # An attempt costs the training some milliseconds of the processor; outages are long.
            wait=wait_random_exponential(multiplier=1.0, max=LONGEST_PAUSE),
            sleep=lambda pause: time.sleep(min(pause, max(0.0, deadline - time.monotonic()))),
            reraise=True,
        )
        try:
            return retrying(once)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise CloudError(f"{self.url}: {explain(error, seconds)} ({what})") from error

    def put(self, path: Path, name: str, sha256: str, seconds: float) -> None:
        """Upload a file of a known SHA-256, and compare what has arrived.

        Raises CloudError: nothing has this name then, or the whole file that had it before.
        """
        end = time.monotonic() + seconds
        each = STALL + path.stat().st_size / SLOWEST
        self.insist(f"uploading {name}", seconds, lambda: self.send(path, name), each)
        left = max(1.0, end - time.monotonic())
        if not self.insist(f"checking {name}", left, lambda: self.is_same(path, name, sha256)):
            raise CloudError(f"{self.url}: {name} arrived damaged")

    async def send(self, path: Path, name: str) -> None:
        there = f"{self.path}/{name}"
        if self.is_local:  # a copy is not atomic, a new name is
            await self.fs._put_file(str(path), f"{there}.part")
            await self.fs._mv(f"{there}.part", there)
        elif hasattr(self.fs, "_call_s3"):
            await self.fs._put_file(str(path), there, chunksize=PART, max_concurrency=4)
        else:
            await self.fs._put_file(str(path), there)

    async def is_same(self, path: Path, name: str, sha256: str) -> bool:
        """Whether the object has the file's size and content."""
        there = f"{self.path}/{name}"
        self.fs.invalidate_cache()
        info = await self.fs._info(there)
        if info["size"] != path.stat().st_size:
            return False
        # S3's ETag is the MD5 of what arrived, unless the bucket encrypts with a key of its own.
        if info.get("ETag", "").strip('"') == await asyncio.to_thread(etag, path):
            return True
        return await self.hash_of(there, info["size"]) == sha256

    async def hash_of(self, there: str, size: int) -> str:
        """SHA-256 of an object, read back in parts."""
        found = hashlib.sha256()
        for start in range(0, size, PART):
            part = await self.fs._cat_file(there, start=start, end=min(size, start + PART))
            found.update(part)
        return found.hexdigest()

    def get(self, name: str, path: Path, sha256: str, seconds: float) -> None:
        """Download a file. Raises CloudError if it is missing or has changed."""
        temporary = path.with_name(path.name + ".part")
        try:
            there = f"{self.path}/{name}"
            self.insist(
                f"downloading {name}", seconds, lambda: self.fs._get_file(there, str(temporary))
            )
            if digest(temporary) != sha256:
                raise CloudError(f"{self.url}: {name} is damaged: its SHA-256 is another one")
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except (FileNotFoundError, FileExpired) as error:
            raise CloudError(f"{self.url}: {name} is not there") from error
        finally:
            temporary.unlink(missing_ok=True)

    def put_small(self, name: str, content: bytes, seconds: float) -> None:
        """Write a small object, and read it back. Raises CloudError if it is not the same."""
        self.put_text(name, content.decode(), seconds)
        if self.get_text(name, seconds) != content.decode():
            raise CloudError(f"{self.url}: {name} arrived damaged")

    def put_text(self, name: str, text: str, seconds: float) -> None:
        """Write a small object: readers see the old one or the new one."""
        there = f"{self.path}/{name}"

        async def write() -> None:
            if self.is_local:
                await self.fs._pipe_file(f"{there}.part", text.encode())
                await self.fs._mv(f"{there}.part", there)
            else:
                await self.fs._pipe_file(there, text.encode())

        self.insist(f"writing {name}", seconds, write)

    def get_text(self, name: str, seconds: float) -> str | None:
        """A small object, or None if it is not there."""
        self.fs.invalidate_cache()
        with suppress(FileNotFoundError):
            there = f"{self.path}/{name}"
            return self.insist(
                f"reading {name}", seconds, lambda: self.fs._cat_file(there)
            ).decode()
        return None

    def names(self, seconds: float) -> list[str]:
        """The names of all objects in the folder."""
        self.fs.invalidate_cache()
        with suppress(FileNotFoundError):
            found = self.insist("listing", seconds, lambda: self.fs._find(self.path))
            return [name.rpartition("/")[2] for name in found]
        return []

    def delete(self, name: str, seconds: float) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError):
            self.insist(
                f"deleting {name}", seconds, lambda: self.fs._rm_file(f"{self.path}/{name}")
            )

    def probe(self, name: str, seconds: float) -> None:
        """Write, read and delete a small object. Raises CloudError if one of them fails."""
        self.put_text(name, name, seconds)
        if self.get_text(name, seconds) != name:
            raise CloudError(f"{self.url}: what was written cannot be read back")
        self.delete(name, seconds)


def etag(path: Path) -> str:
    """What S3 calls a file: its MD5, or that of the MD5s of its parts and their number.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    size = path.stat().st_size
    if size < 2 * PART:  # s3fs sends it in one piece
        return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    part = part_size(size)
    sums = []
    with path.open("rb") as file:
        while piece := file.read(part):
            sums.append(hashlib.md5(piece, usedforsecurity=False).digest())
    return f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"


def part_size(size: int) -> int:
    """Bytes of the parts that s3fs makes of a large file."""
    from s3fs.core import calculate_chunksize

    found: Any = calculate_chunksize(size, chunksize=PART)
    return int(found)
