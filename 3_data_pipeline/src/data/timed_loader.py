"""A DataLoader that says what its windows cost, and what each of its epochs has waited for."""

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader
from tqdm import tqdm

from src.data.fast_dataset import FastDataset


class TimedLoader(DataLoader):
    """A line before the first read, and a line after each epoch."""

    # Only a FastDataset has chunks to describe, and counts seconds. The batch size is an argument,
    # because a loader with a batch_sampler has none.
    def __init__(self, dataset: Any, batch_size: int, **settings: Any) -> None:
        super().__init__(dataset, **settings)
        if isinstance(dataset, FastDataset):
            ahead = self.prefetch_factor if self.num_workers else dataset.batches_ahead
            where = (
                f"in each of {self.num_workers} workers " if self.num_workers else ""
            )
            say(where + summary(dataset, batch_size, ahead))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        seconds = getattr(self.dataset, "seconds", torch.zeros(2))
        asked = time.perf_counter()
        for number, batch in enumerate(super().__iter__(), 1):
            got = time.perf_counter()
            if number == 1:
                # Nothing was under way yet, so this wait is reported by itself.
                first, start, before, waited = got - asked, got, seconds.clone(), 0.0
            else:
                waited += got - asked
            # Before the last batch, because Lightning does not come back after it.
            if number == len(self) > 1:
                limit = limiting_stage(
                    waited / (got - start), *(seconds - before).tolist()
                )
                say(
                    f"first batch after {first:.1f} s, then waited {waited:.1f} of"
                    f" {got - start:.1f} s; what limits is {limit}"
                )
            yield batch
            asked = time.perf_counter()


def limiting_stage(waited: float, store: float, decoding: float) -> str:
    """The bottleneck, from the share of the time spent waiting and a FastDataset's seconds."""
    if waited < 0.05:
        return "the model"
    if not store + decoding:  # another dataset, which does not count
        return "the loader"
    # Workers wait and compute side by side, so these two tell only which one is longer.
    return "the store" if store > decoding else "this process, which decodes and copies"


def summary(dataset: FastDataset, batch_size: int, ahead: int | None) -> str:
    """What a window costs on average, and what memory a process may take for batches."""
    # A window of w elements that starts anywhere touches (w - 1) / c + 1 chunks of c.
    sizes = zip(dataset.grid.window, dataset.chunk[1:], strict=True)
    requests = len(dataset.arrays) * math.prod((w - 1) / c + 1 for w, c in sizes)
    values = 4 * len(dataset.variables) * math.prod(dataset.grid.window)
    chunk = 4 * math.prod(dataset.chunk)
    # Besides those ahead, one is complete, one is stacked by the loader, one is in the model.
    memory = ((ahead or 0) + 3) * batch_size * values + dataset.concurrency * chunk
    memory += int(dataset.cache_mb * 1e6)
    text = f"a window of {values / 1e3:.0f} kB takes {requests:.1f} requests"
    text += f" of {chunk / 1e3:.0f} kB; batches take up to {memory / 1e6:.0f} MB"
    times = requests * chunk / values
    return text + (
        f"; CHUNKS DO NOT FIT: {times:.0f} times a window is read" if times > 10 else ""
    )


@rank_zero_only
def say(text: str) -> None:
    """Print a line, above a progress bar if there is one."""
    tqdm.write(f"loader    {text}")
