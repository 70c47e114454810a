"""What the benchmark is made of: a dataset that keeps times, the memory, the YAML files."""

import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import psutil
import yaml
from torch.utils.data import Dataset, default_collate

from src.errors import UserError


class Timed(Dataset):
    """Another dataset, whose batches know when their loading began and ended.

    The clock is the same for all processes of a machine, so workers can be compared.

    Args:
        dataset: with or without ``prefetch``.
        dask_threads: for a dataset that reads with dask; None takes as many as cores.
    """

    def __init__(self, dataset: Any, dask_threads: int | None) -> None:
        self.dataset = dataset
        self.dask_threads = dask_threads
        self.starts: dict[tuple[int, ...], float] = {}
        self.batches_ahead = getattr(dataset, "batches_ahead", 0)

    def __len__(self) -> int:
        """As many samples as the other dataset."""
        return len(self.dataset)

    def prefetch(self, indices: Sequence[int]) -> None:
        """The loading begins here, if there is a LookAhead."""
        self.starts[tuple(indices)] = time.perf_counter()
        self.dataset.prefetch(indices)

    def forget_requests(self) -> None:
        """Drop the batches that are under way."""
        self.dataset.forget_requests()

    def __getitems__(self, indices: Sequence[int]) -> tuple[float, float, Any]:
        """Start and end of the loading, and the samples."""
        start = self.starts.pop(tuple(indices), time.perf_counter())
        with dask.config.set(num_workers=self.dask_threads):
            if hasattr(self.dataset, "__getitems__"):
                samples = self.dataset.__getitems__(indices)
            else:
                samples = [self.dataset[index] for index in indices]
        return start, time.perf_counter(), samples


def collate(timed: Any) -> tuple[float, float, Any]:
    """A batch as a DataLoader makes it, and its two times."""
    start, end, samples = timed
    return start, end, default_collate(samples)


def memory(pid: int) -> float:
    """What a process and its children have in memory, in MB."""
    total = 0.0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                info = process.memory_full_info()
                # Of a page that three processes share, pss counts a third (Linux).
                total += getattr(info, "pss", info.uss) / 1e6
            except psutil.AccessDenied:  # of another process, on macOS
                total += process.memory_info().rss / 1e6
    except psutil.Error:  # one of them has just ended
        pass
    return total


def read_defaults(file: Path) -> dict[str, Any]:
    """The settings that all configurations of a YAML file share."""
    return yaml.safe_load(file.read_text())["defaults"]


def read_configurations(file: Path) -> dict[str, dict[str, Any]]:
    """Each configuration of a YAML file: the defaults, and its own keys instead of them."""
    content = yaml.safe_load(file.read_text())
    defaults = content["defaults"]
    configurations = {}
    for name, changes in content["configurations"].items():
        if unknown := (changes or {}).keys() - defaults.keys():
            raise UserError(f"{file}: {name}: unknown keys {sorted(unknown)}")
        merged = defaults | (changes or {})
        merged["dataset_args"] = defaults["dataset_args"] | merged["dataset_args"]
        # What workers have loaded in advance would count as if it had taken no time.
        prefetched = merged["num_workers"] * merged["prefetch_factor"]
        merged["machine"] = platform.node()
        merged["warmup"] = max(1, merged["warmup"], prefetched)
        configurations[name] = merged
    return configurations
