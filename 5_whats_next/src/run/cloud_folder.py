"""A folder in object storage, where each request has a limit and each file is compared."""

import asyncio
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsspec.asyn import sync

from src.data.store import file_system
from src.run.errors import UserError

READ_TIMEOUT = 20.0  # seconds; a server may take long to acknowledge a large object
TIMEOUT = 60.0  # seconds, with all retries
SECONDS_PER_MB = 3.0  # more for a transfer: a line may be slow
PART = 50 * 2**20  # bytes; files of at least two parts are uploaded in parts


class DamagedError(UserError):
    """An object is not what was uploaded."""


class CloudFolder:
    """A folder in object storage. Raises UserError if a request and its retries fail."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs, self.path = file_system(
            url, asynchronous=False, read_timeout=READ_TIMEOUT
        )

    def request(
        self,
        method: str,
        *arguments: Any,
        size: int = 0,
        **settings: Any,
    ) -> Any:
        """Call an asynchronous method of the filesystem, which retries by itself."""
        # A limit for an answer is not enough: a transfer of which a byte arrives now and then would
        # never end.
        seconds = TIMEOUT + SECONDS_PER_MB * size / 1e6

        async def limited() -> Any:
            async with asyncio.timeout(seconds):
                return await getattr(self.fs, method)(*arguments, **settings)

        try:
            return sync(self.fs.loop, limited)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.url}: {error}") from error
        except Exception as error:
            reason = str(error) or f"not finished in {seconds:.0f} s"
            if isinstance(error, PermissionError):
                # Without the right to list, AWS answers so for what is not there, too.
                reason += "; a right is missing: to list (s3:ListBucket), read, write or delete"
            raise UserError(f"{self.url}: {type(error).__name__} {reason}") from error

    def upload(self, path: Path, name: str, sha256: str) -> None:
        """Upload a file, and make sure that its bytes are in the store.

        Raises:
            UserError: they are not, or the store does not answer.
        """
        size = path.stat().st_size
        key = f"{self.path}/{name}"
        # S3 answers with a checksum of what it has stored. Encrypted buckets and other stores have
        # another one, or none: then the object is read back.
        checksum = f'"{s3_checksum(path)}"'
        if self.version(name) == checksum:
            return  # an earlier start has uploaded it
        self.request("_put_file", str(path), key, chunksize=PART, size=size)
        if self.version(name) != checksum:
            copy = path.with_name(f"{path.name}.copy")
            self.download(name, copy, sha256, size)
            copy.unlink()

    def download(self, name: str, path: Path, sha256: str, size: int) -> None:
        """Download a file.

        Raises:
            DamagedError: it is not what was uploaded.
            UserError: the store does not answer, or the file was deleted meanwhile; or the disk is
                full.
        """
        part = path.with_name(f"{path.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.request("_get_file", f"{self.path}/{name}", str(part), size=size)
            if not digest(part).startswith(sha256):
                raise DamagedError(f"{self.url}: {name} is damaged")
            # The name comes last: a power cut must not leave an empty file under it.
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        except FileNotFoundError as error:
            # Another machine may train this run, and have deleted it since it was listed.
            kind = DamagedError if name in self.sizes() else UserError
            raise kind(f"{self.url}: {name} is gone; start again") from error
        except OSError as error:  # of the disk
            raise UserError(f"{path}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Write a small object."""
        self.request("_pipe_file", f"{self.path}/{name}", text.encode())

    def read(self, name: str) -> str:
        """A small object; empty if there is none."""
        try:
            return self.request("_cat_file", f"{self.path}/{name}").decode()
        except FileNotFoundError:
            return ""

    def version(self, name: str) -> str:
        """What changes with an object's content; empty if there is no object, or no such thing."""
        self.fs.invalidate_cache()
        with suppress(FileNotFoundError):
            return self.request("_info", f"{self.path}/{name}").get("ETag", "")
        return ""

    def sizes(self) -> dict[str, int]:
        """The objects in this folder, and their bytes."""
        self.fs.invalidate_cache()
        try:
            # Not with maxdepth=1: fsspec then takes a missing right for an empty folder.
            found = self.request("_find", self.path, detail=True)
        except FileNotFoundError:
            return {}
        sizes = {}
        for path, about in found.items():
            if Path(path).parent == Path(self.path):  # no folder in between
                sizes[Path(path).name] = int(about["size"])
        return sizes

    def delete(self, name: str) -> None:
        """Delete an object."""
        self.request("_rm_file", f"{self.path}/{name}")

    def probe(self) -> None:
        """Write, list, read and delete an object. Raises UserError if one of these fails."""
        name = f"probe-{secrets.token_hex(8)}"
        self.write(name, name)
        if name not in self.sizes() or self.read(name) != name:
            raise UserError(f"{self.url}: what was written is not what is read")
        self.delete(name)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def s3_checksum(path: Path) -> str:
    """What S3 answers for a file: its MD5, or that of its parts' MD5s, with their number.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
    """
    with path.open("rb") as file:
        if path.stat().st_size < 2 * PART:
            return hashlib.file_digest(file, "md5").hexdigest()
        parts = []
        while content := file.read(PART):
            parts.append(hashlib.md5(content, usedforsecurity=False))
    of_parts = b"".join(part.digest() for part in parts)
    whole = hashlib.md5(of_parts, usedforsecurity=False).hexdigest()
    return f"{whole}-{len(parts)}"
