"""What a reader needs before it can read: copies, made from the store's four arrays, and timed.

The chapter's own readers and zarr alone read packed copies, litdata and mosaicml-streaming shards
of their own. Shards are written to this machine's disk by the libraries' own writers, in
random order, and then uploaded.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import torch
from peers.raw import MONTHS, PACKED
from peers.shard_readers import COLUMN
from peers.task import CHAPTER, HEIGHT, WIDTH, Task, fsspec_options, order
from src.errors import UserError

GROUP = 128  # samples that are read together for a copy
Settings = dict[str, Any]
_originals: dict[str, Any] = {}  # opened by this process


def build_store(url: str, months: int) -> None:
    """The synthetic ocean that all copies are made of; what is there already stays."""
    size = ["--months", str(months), "--height", str(HEIGHT), "--width", str(WIDTH)]
    run("build_store.py", "cube", "--url", url, *size, "--chunk", "[1,64,64]")


def run(*command: str) -> None:
    """One of the chapter's scripts; what it says is not our result."""
    done = subprocess.run([sys.executable, *command], cwd=CHAPTER, stdout=sys.stderr)
    if done.returncode:
        raise UserError(f"{' '.join(command)}: exit code {done.returncode}; see above")


def pack(task: Task, _: Settings) -> Settings:
    """All variables of a chunk in one object; the chapter's pack_store.py."""
    return packed(task, task.window, PACKED)


def pack_months(task: Task, _: Settings) -> Settings:
    """A month of all variables in one object: what ChunkStream reads at once, and cuts up."""
    return packed(task, (1, *task.shape[1:]), MONTHS)


def packed(task: Task, chunk: Sequence[int], path: str) -> Settings:
    """One of the chapter's own copies, made by its own script."""
    arguments = ["--url", task.url, "--name", path.rpartition("/")[2], "--overwrite", "true"]
    start = time.perf_counter()
    run("pack_store.py", *arguments, "--chunk", "[" + ",".join(map(str, chunk)) + "]")
    return {"seconds": time.perf_counter() - start} | measure(f"{task.url}/{path}")


def read_groups(task: Task) -> Iterator[list[int]]:
    """The samples in random order: shards should mix what was neighbours in the store."""
    indices = order(replace(task, seed=task.seed + 1))
    for start in range(0, len(indices), GROUP):
        yield indices[start : start + GROUP]


def read_raw(indices: list[int], task: Task) -> Iterator[np.ndarray]:
    """Samples (V, T, H, W) as stored, from the four arrays, by the fastest reader at hand."""
    from src.data.fast_dataset import FastDataset

    if task.url not in _originals:
        dataset = FastDataset("train", **task.dataset_args(), packed=False)
        dataset.mean = np.zeros_like(dataset.mean)  # the values as they are stored
        dataset.std = np.ones_like(dataset.std)
        _originals[task.url] = dataset
    for x, _ in _originals[task.url].__getitems__(indices):
        yield x.numpy()


def tensor_rows(indices: list[int], task: Task) -> Iterator[dict[str, torch.Tensor]]:
    """As dictionaries of tensors: litdata 0.2.76 does not compress a NumPy array on its own."""
    for sample in read_raw(indices, task):
        yield {COLUMN: torch.from_numpy(sample)}


def write_litdata(task: Task, folder: Path, settings: Settings) -> None:
    from litdata import optimize

    optimize(
        fn=partial(tensor_rows, task=task),
        inputs=list(read_groups(task)),
        output_dir=str(folder),
        reorder_files=False,
        verbose=False,
        start_method="spawn",
        **settings,
    )


def write_mosaicml(task: Task, folder: Path, settings: Settings) -> None:
    from streaming import MDSWriter

    shape = ",".join(map(str, (len(task.variables), *task.window)))
    columns = {COLUMN: f"ndarray:float32:{shape}"}
    with MDSWriter(out=str(folder), columns=columns, **settings) as writer:
        for indices in read_groups(task):
            for sample in read_raw(indices, task):
                writer.write({COLUMN: sample})


def shards(
    write: Callable[[Task, Path, Settings], None], peer: str, task: Task, settings: Settings
) -> Settings:
    """A peer's own copy: written, uploaded, measured."""
    url = task.copy_url(peer)
    files, place = fsspec.core.url_to_fs(url, **fsspec_options(url))
    if files.exists(place):
        files.rm(place, recursive=True)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "shards"
        start = time.perf_counter()
        write(task, folder, settings)
        written = time.perf_counter()
        files.put(f"{folder}/", f"{place}/", recursive=True)
        uploaded = time.perf_counter()
    times = {"write_seconds": written - start, "upload_seconds": uploaded - written}
    return {"seconds": uploaded - start} | times | measure(url)


def measure(url: str) -> Settings:
    """How large a copy is."""
    files, place = fsspec.core.url_to_fs(url, **fsspec_options(url))
    files.invalidate_cache()
    sizes = files.du(place, total=False)
    return {"megabytes": sum(sizes.values()) / 1e6, "objects": len(sizes)}


def is_there(task: Task, copy: str) -> bool:
    """Whether a copy that the log knows is still in the store."""
    url = f"{task.copy_url(copy)}/index.json"
    if copy in ("packed", "months"):
        url = f"{task.url}/{PACKED if copy == 'packed' else MONTHS}/zarr.json"
    files, place = fsspec.core.url_to_fs(url, **fsspec_options(url))
    return bool(files.exists(place))


COPIES: dict[str, Callable[[Task, Settings], Settings]] = {
    "packed": pack,
    "months": pack_months,
    "litdata": partial(shards, write_litdata, "litdata"),
    "mosaicml": partial(shards, write_mosaicml, "mosaicml"),
}
