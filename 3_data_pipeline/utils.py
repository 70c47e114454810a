"""What the small scripts of this chapter share."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import fsspec
from src.data.s3_server import BUCKET, connect


def embedded_file_system() -> fsspec.AbstractFileSystem:
    """The embedded server's bucket, as fsspec sees it: the same methods as for a local disk."""
    server = connect()
    return fsspec.filesystem(
        "s3",
        key=server["AWS_ACCESS_KEY_ID"],
        secret=server["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=server["AWS_ENDPOINT_URL"],
        max_concurrency=1,  # else it asks for an object's size before it reads it
    )


def embedded_url(name: str) -> str:
    """The address of an object in the embedded bucket."""
    return f"s3://{BUCKET}/{name}"


@dataclass
class Timing:
    """How long something took, in seconds."""

    seconds: float = 0.0


@contextmanager
def timed() -> Iterator[Timing]:
    """Measure the block; the result is there when it has ended."""
    timing, start = Timing(), time.perf_counter()
    yield timing
    timing.seconds = time.perf_counter() - start
