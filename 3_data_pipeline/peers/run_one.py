"""Do one thing for benchmark_peers.py in a process of its own: no caches, no connections before.

It reads what to do as JSON from its standard input, and prints the result as JSON. The jobs:

  epoch  read a whole epoch, or as much of it as fits into the limit
  check  the same, and the hash of every sample
  copy   make a copy
  task   open the store, and say what its samples are
"""

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from peers import copies, raw, readers, shard_readers
from peers.task import Task, open_task
from src.errors import one_line_errors
from utils import Processes

Result = dict[str, Any]
READERS: dict[str, Callable[..., Iterator[Any]]] = {
    function.__name__: function
    for function in (
        raw.raw_gets,
        readers.fast_dataset,
        readers.chunk_stream,
        readers.zarr_alone,
        readers.xarray_dask,
        readers.xbatcher,
        shard_readers.litdata,
        shard_readers.mosaicml,
    )
}


def epoch(task: Task, reader: str, settings: dict[str, Any], limit: float) -> Result:
    """Read an epoch, and no longer than ``limit`` seconds after the first batch.

    Seconds count from before the reader opens the store.
    """
    start = time.perf_counter()
    samples = first_samples = 0
    first = last = 0.0
    for batch in READERS[reader](task, **settings):
        last = time.perf_counter() - start
        samples += len(batch)
        if not first:
            first, first_samples = last, samples
        if last - first > limit:
            break
    else:
        if samples != len(task.starts):
            raise RuntimeError(f"the epoch had {samples} samples, not {len(task.starts)}")
    result = {"samples": samples, "cut_off": samples < len(task.starts), "seconds": last}
    result |= {"seconds_to_first_batch": first, "epoch_rate": samples / last}
    if samples > first_samples:
        result["rate"] = (samples - first_samples) / (last - first)
    return result


def check(task: Task, reader: str, settings: dict[str, Any], limit: float) -> Result:
    """The hashes of what a reader delivers; sorted, because each reader has its own order."""
    hashes: list[str] = []
    start = 0.0
    for batch in READERS[reader](task, **settings):
        start = start or time.perf_counter()
        batch = raw.decode(task, batch) if reader == "raw_gets" else batch
        hashes += [hashlib.blake2b(x.tobytes(), digest_size=8).hexdigest() for x in batch.numpy()]
        if time.perf_counter() - start > limit:
            break
    return {"hashes": sorted(hashes)}


def perform(job: dict[str, Any]) -> Result:
    """One job, see above."""
    kind = job.pop("job")
    if kind == "task":
        return vars(open_task(**job))
    task = Task(**job.pop("task"))
    for module in job.pop("imports", []):  # no part of the time to the first batch
        importlib.import_module(module)
    if kind == "copy":
        return copies.COPIES[job["copy"]](task, job["settings"])
    return {"epoch": epoch, "check": check}[kind](task, **job)


if __name__ == "__main__":
    with one_line_errors():
        printed = os.dup(1)
        os.dup2(2, 1)  # what the libraries print is no result
        with Processes() as processes:
            result = perform(json.load(sys.stdin))
        result |= {"peak_memory_mb": processes.peak_mb, "cpu_seconds": processes.seconds}
        with os.fdopen(printed, "w") as answer:
            answer.write(json.dumps(result) + "\n")
        sys.stderr.flush()
        os._exit(0)  # a reader that was cut off would first read all that it has asked for
