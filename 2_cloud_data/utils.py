"""What the small scripts share: the embedded bucket as a file system, and a clock."""

from collections.abc import Callable
from timeit import timeit

import fsspec
from src.data.s3_server import connect


# A DataLoader's worker opens its own connection: s3fs refuses to work after a fork. Open it in
# worker_init_fn, which runs once in each worker, or at the first read, as CloudDataset does. Not in
# __getitem__: a new connection costs more than a read.
def embedded_file_system() -> fsspec.AbstractFileSystem:
    """The embedded server's storage, with the methods that fsspec has for every provider."""
    server = connect()
    keys = {"key": server["AWS_ACCESS_KEY_ID"], "secret": server["AWS_SECRET_ACCESS_KEY"]}
    return fsspec.filesystem("s3", endpoint_url=server["AWS_ENDPOINT_URL"], **keys)


def timed(action: str, call: Callable[[], object]) -> None:
    """Call it once, and print the action with its duration in milliseconds."""
    print(f"{action:<56} {1e3 * timeit(call, number=1):8.1f} ms")
