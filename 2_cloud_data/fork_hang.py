"""Workers that are forked after a read from object storage may wait for ever: see it, and the fix.

  uv run python fork_hang.py          fork in all cases, the fix in those where fork breaks
  uv run python fork_hang.py --all    every combination

Each row is a process with a DataLoader of two workers. It shows what that process had done with the
store when its workers started, and what came of it. No batch for 10 seconds after both workers have
started counts as a hang; a busy machine needs more: --timeout.

Why. A library that reads many chunks at once has threads for that: fsspec and zarr run an event
loop on one, dask has a pool. A caller leaves its request in memory and waits for such a thread. Now
fork copies the memory of a process, but only one of its threads: the one that calls fork. A worker
inherits a pool that looks alive, hands it a request, and waits for a thread that does not exist.
And a lock that another thread held at that moment stays locked in the worker for ever.

Why only sometimes. A process that has not read yet has no such threads: its workers start their
own, and all is well until somebody adds a look at ``dataset[0]`` ("has read"). dask's pool even
recovers when a worker needs more chunks at once than it remembers idle threads: then it starts a
real one. A lock is a matter of the moment: in "is reading" another thread is just importing s3fs
and holds the lock of that import; a worker hangs, or finds half a module, or is lucky. Libraries
differ, too: s3fs notices that it is in another process, and refuses (fsspec/filesystem_spec, issues
755 and 835), zarr starts a new event loop, which cannot use the connections of the old one, and
readers with threads in Rust hang (zarrs/zarrs-python, issue 171).

The fix. With ``multiprocessing_context="spawn"`` each worker is a new Python; with "forkserver" a
new Python that reads nothing forks them all. It needs ``if __name__ == "__main__"`` in the script,
which they import, and a dataset that can be pickled and opens the store at its first read, in the
worker. It costs time, see "first batch": a new Python imports all libraries again; to pay once and
not in every epoch: ``persistent_workers=True``. A DataLoader's ``timeout`` makes a hang an error.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import os
import platform
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import dask.array  # noqa: F401 - xarray needs it, and would import it within the time limit
import fsspec
import numpy as np
import torch
import xarray as xr
import zarr
from src.data.s3_server import BUCKET, ServerError, connect
from src.errors import UserError, one_line_errors
from torch.utils.data import DataLoader, Dataset

STORE = f"s3://{BUCKET}/fork_hang.zarr"
WIDTH = 8
EXPECTED = torch.arange(1.0, 5.0)[:, None].expand(-1, WIDTH)  # four samples, one chunk each
PARENTS = ("has not read", "has read", "is reading")
METHODS = ("fork", "forkserver", "spawn")
LIBRARIES = ("torch", "fsspec", "s3fs", "zarr", "xarray", "dask")
START_TIMEOUT, STOP_TIMEOUT = 120.0, 5.0  # seconds; two Pythons import everything to start
ROW = "{:8}{:14}{:12}{:>11}  {}"

Reader = Callable[[int], Any]
Case = tuple[str, ...]  # reader, what the parent has done, start method of the workers


def open_s3fs() -> Reader:
    """The bytes of a chunk, through fsspec."""
    filesystem = fsspec.filesystem("s3")
    return lambda index: np.frombuffer(filesystem.cat_file(f"{STORE}/field/c/{index}/0"), "f4")


def open_zarr() -> Reader:
    """zarr, which reads through s3fs."""
    array = zarr.open_array(f"{STORE}/field", mode="r")
    return lambda index: array[index]


def open_xarray() -> Reader:
    """xarray, which by default reads through dask, zarr and s3fs."""
    field = xr.open_zarr(STORE, consolidated=False)["field"]
    return lambda index: field[index].values


READERS = {"s3fs": open_s3fs, "zarr": open_zarr, "xarray": open_xarray}


class LazyDataset(Dataset):
    """Opens the store at the first read, and keeps it open.

    A sample is a float32 tensor (WIDTH,), one row of EXPECTED.
    """

    def __init__(self, reader: str) -> None:
        self.reader = reader
        self.read: Reader | None = None

    def __len__(self) -> int:
        return len(EXPECTED)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.read is None:
            self.read = READERS[self.reader]()
        return torch.tensor(self.read(index))

    def __getstate__(self) -> dict[str, object]:
        """What a new Python gets. fork does not ask: it copies what is open."""
        return self.__dict__ | {"read": None}


def write_store() -> None:
    """Write EXPECTED. It has no zeros, because a chunk of zeros would not be written."""
    names = ("time", "x")
    layout: dict[str, Any] = {"chunks": (1, WIDTH), "compressors": None, "dimension_names": names}
    zarr.open_group(STORE, mode="w").create_array("field", data=EXPECTED.numpy(), **layout)


def play(reader: str, parent: str, method: str, script: str) -> None:
    """The process of one case: each worker tells its number, this process its row's last cells."""
    if os.getppid() != int(script):  # interrupted while it started this process
        return
    try:
        dataset = LazyDataset(reader)
        if parent == "has read":
            dataset[0]
        if parent == "is reading":
            threading.Thread(target=dataset.__getitem__, args=(0,), daemon=True).start()
        seconds, samples = load(dataset, method)
        outcome = "ok" if samples.equal(EXPECTED) else "wrong values"
        tell(f"{seconds:.1f} s\t{outcome}")
    except Exception as error:
        tell(f"-\tfails: {one_line(error)}")


def load(dataset: Dataset, method: str) -> tuple[float, torch.Tensor]:
    """Seconds until the first batch, and all samples as one tensor."""
    # What the server of "forkserver" imports, once for all workers.
    multiprocessing.set_forkserver_preload([*LIBRARIES, "dask.array"])
    loader = DataLoader(dataset, num_workers=2, multiprocessing_context=method, worker_init_fn=tell)
    start = time.perf_counter()
    batches = iter(loader)
    first = next(batches)
    seconds = time.perf_counter() - start
    return seconds, torch.cat([first, *batches])


def tell(line: object) -> None:
    """Print in a single write, because several processes share this output."""
    os.write(1, f"{line}\n".encode())


def one_line(error: Exception) -> str:
    """The end of the message; a worker's traceback and the names of exceptions come before it."""
    last = (str(error) or repr(error)).strip().splitlines()[-1].rsplit(": ")[-1]
    return textwrap.shorten(re.sub("<.*>", "<...>", last), 50, placeholder=" ...")


def run(case: Case, timeout: float, folder: str) -> tuple[str, str]:
    """Start the process of a case, and end it with its workers, also if this one is interrupted.

    Returns the time to the first batch, and what came of it. Temporary files go to ``folder``.
    """
    process = subprocess.Popen(
        # Python removes the semaphores that a killed worker leaves, and would warn of them.
        [sys.executable, "-W", "ignore", __file__, "--case", *case, str(os.getpid())],
        stdout=subprocess.PIPE,
        bufsize=0,  # a buffer would hide lines from select
        start_new_session=True,  # a process group, with the workers in it
        env=os.environ | {"TMPDIR": folder},  # a worker that is killed does not tidy up
    )
    try:
        for limit in (START_TIMEOUT, START_TIMEOUT, timeout):  # two workers start, then they read
            if (line := next_line(process, limit)) not in ("0", "1"):
                break
        if line is None:
            return "-", "hangs"
        seconds, _, outcome = line.partition("\t")
        return seconds or "-", outcome or "fails: it ended without a word"
    finally:
        end(process)


def next_line(process: subprocess.Popen, timeout: float) -> str | None:
    """What a process prints next; empty if it has ended, None if nothing comes in time."""
    assert process.stdout
    readable, _, _ = select.select([process.stdout], [], [], timeout)
    return process.stdout.readline().decode().strip() if readable else None


def end(process: subprocess.Popen) -> None:
    """End a process group. Its output closes when the last process that could write is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: only zombies left
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_TIMEOUT)
            return


def grid(everything: bool) -> Iterator[Case]:
    """The cases. What a parent has done cannot matter to a worker that is a new Python."""
    for reader, parent, method in itertools.product(READERS, PARENTS, METHODS):
        if everything or method == "fork" or parent == "has read":
            yield reader, parent, method


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="27 cases instead of 15")
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="seconds that count as a hang (default: 10)"
    )
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Print a row for each case as it finishes. Returns the exit code."""
    arguments = parse()
    if arguments.case:
        play(*arguments.case)
        return 0
    if not 0 < arguments.timeout <= 3600:
        raise UserError(f"--timeout: {arguments.timeout} s; allowed: above 0, up to 3600 s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # run() ends its case
    try:
        os.environ |= connect() | {"AWS_SESSION_TOKEN": ""}  # one of the user's would not match
    except ServerError as error:
        raise UserError(str(error)) from error
    write_store()
    print(f"Python {platform.python_version()},", ", ".join(f"{n} {version(n)}" for n in LIBRARIES))
    print("\nreader  the parent    workers     first batch  outcome", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in grid(arguments.all):
            print(ROW.format(*case, *run(case, arguments.timeout, folder)), flush=True)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
