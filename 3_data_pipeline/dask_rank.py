"""A process that stands for a rank, or holds the cluster of all; dask_cluster.py starts it."""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmark_file import Configuration
from src.errors import UserError
from utils import CHAPTER, Processes, import_path

ADDRESS = "DASK_SCHEDULER_ADDRESS"
LOG = CHAPTER / "output" / "dask_cluster.log"  # what dask says while it works
ENDING = 20.0  # seconds that a process has to close its cluster
Answer = dict[str, Any]


def serve(line: Connection, variables: dict[str, str], task: Answer) -> None:
    """What a new process does: get ready, work once for each word that comes, until none can."""
    os.setsid()  # Ctrl-C does not reach it: its parent ends it in order
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    os.environ.pop(ADDRESS, None)
    os.environ |= variables  # before dask reads them
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:  # dask's workers inherit it
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        work = share_cluster(**task) if "workers" in task else make_rank(**task)
        while line.recv():
            start = time.time()
            with Processes() as watched:
                answer = work() | {"start": start, "end": time.time()}
            with Processes() as now:  # of its children it says what they have used since they began
                pass
            answer |= {"cpu": now.seconds + time.process_time(), "memory_mb": watched.peak_mb}
            line.send(answer)
    except (EOFError, BrokenPipeError):  # the parent has ended
        pass
    except Exception as error:  # the parent reports it
        line.send({"error": (str(error) or type(error).__name__).splitlines()[0]})
    finally:
        atexit._run_exitfuncs()  # close the clusters, before multiprocessing kills their workers
        os._exit(0)  # to take the interpreter apart can take seconds


def share_cluster(workers: int, threads: int) -> Callable[[], Answer]:
    """Start the cluster of all ranks; the work of this process is to say where it is."""
    from distributed import LocalCluster  # here, and below: what only some of the processes need

    cluster = LocalCluster(
        n_workers=workers,
        threads_per_worker=threads,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    )
    print(f"dask      {cluster.scheduler_address}, dashboard {cluster.dashboard_link}", flush=True)
    return lambda: {"address": cluster.scheduler_address}


def make_rank(configuration: Configuration, rank: int, ranks: int) -> Callable[[], Answer]:
    """Open the dataset; the work is to read the rank's samples of all batches."""
    from benchmark_one import Order

    dataset = import_path(configuration["dataset"])("train", **configuration["dataset_args"])
    order = Order(dataset, configuration["batch_size"] * ranks, configuration["batches"])
    batches = [batch[rank::ranks] for batch in order]

    def read() -> Answer:
        check = 0
        for indices in batches:
            for x, _ in dataset.__getitems__(indices):
                check = zlib.crc32(x.numpy().tobytes(), check)
        return {"check": check, "address": dataset.cluster, "samples": sum(map(len, batches))}

    return read


class Child:
    """A process that serves; it and its children end with the ``with`` block."""

    def __init__(self, variables: dict[str, str], task: Answer) -> None:
        context = multiprocessing.get_context("spawn")  # as good as a command of its own
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, variables, task))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it inherits that
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            theirs.close()

    def answer(self, began: float, timeout: float) -> Answer:
        """Raises UserError with what went wrong, or if there is no answer in time."""
        if not self.line.poll(max(0.0, began + timeout - time.monotonic())):
            raise UserError(f"not done in {timeout:g} s")
        try:
            answer = self.line.recv()
        except (EOFError, ConnectionResetError) as error:
            self.process.join()
            raise UserError(f"a process ended, exit code {self.process.exitcode}") from error
        if "error" in answer:
            raise UserError(answer["error"])
        return answer

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        self.process.join(ENDING)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # they all have ended
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        self.line.close()
