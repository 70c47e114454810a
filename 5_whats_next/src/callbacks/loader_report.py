"""What the loader costs and holds up: a line when a training begins, and one after each epoch."""

import math
import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from tqdm import tqdm

from src.data.fast_dataset import FastDataset
from src.data.tensorstore_arrays import is_plain

# Waiting less than this share of the time is noise, and a faster loader would gain nothing.
NEGLIGIBLE = 0.05


class LoaderReport(Callback):
    """Says how long the training has waited for its batches, and for what; for any loader.

    Place it behind other callbacks: what they do after a batch would count as waiting, as a
    checkpoint inside an epoch does, which Lightning writes last. On a GPU, the steps run behind
    Python, so some of the waiting costs nothing; chapter 4 measures there.
    """

    def __init__(self) -> None:
        self.start = 0.0
        self.asked = 0.0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Say how much memory the reader may take, if it is one of ours."""
        loader = trainer.train_dataloader
        self.dataset = getattr(loader, "dataset", None)
        batch_size = getattr(trainer.datamodule, "batch_size", None)
        if batch_size and isinstance(self.dataset, FastDataset):
            memory = memory_needed(loader, batch_size // trainer.world_size) / 1e6
            text = "batches, chunks under way and caches take up to"
            print_line(f"{text} {memory:.0f} MB")
        # Lightning does not call it where a run goes on inside an epoch.
        self.on_train_epoch_start(trainer, module)

    def on_train_epoch_start(self, *_: object) -> None:
        """Start the clock: the first batch is asked for after this."""
        self.asked = time.perf_counter()
        self.first_wait: float | None = None
        self.waited = 0.0

    def on_train_batch_start(self, *_: object) -> None:
        """A batch has come."""
        now = time.perf_counter()
        if self.first_wait is None:
            # Nothing was under way yet, so this wait is reported by itself.
            self.first_wait = now - self.asked
            self.start = now
            self.seconds_before = seconds_of(self.dataset)
        else:
            self.waited += now - self.asked

    def on_train_batch_end(self, *_: object) -> None:
        """The next batch is asked for after this."""
        self.asked = time.perf_counter()

    def on_validation_end(self, *_: object) -> None:
        """Leave out the time since the last batch; training waits for the next one after this."""
        now = time.perf_counter()
        self.start += now - self.asked
        self.asked = now

    def on_train_epoch_end(self, *_: object) -> None:
        """Say what this epoch has waited for."""
        seconds = self.asked - self.start
        store, decoding = (seconds_of(self.dataset) - self.seconds_before).tolist()
        limit = limiting_stage(self.waited / seconds, store, decoding)
        print_line(
            f"first batch after {self.first_wait:.1f} s, then waited {self.waited:.1f} of"
            f" {seconds:.1f} s; what limits is {limit}"
        )


def seconds_of(dataset: Any) -> Tensor:
    """What a dataset has spent on waiting for its store and on decoding: (2,), 0 if unknown."""
    if not isinstance(dataset, FastDataset):
        return torch.zeros(2)
    return dataset.seconds.clone()


def limiting_stage(waited: float, store: float, decoding: float) -> str:
    """The bottleneck, from the share of the time spent waiting and a dataset's two seconds."""
    if waited < NEGLIGIBLE:
        return "the model"
    if not store + decoding:  # the dataset keeps no count
        return "the loader"
    # Workers wait and compute side by side, so these two tell only which one is longer.
    return "the store" if store > decoding else "decoding and copying"


def memory_needed(loader: Any, batch_size: int) -> float:
    """Bytes that batches, chunks on their way, and caches take at most, in all processes of a rank.

    Validation at the end of an epoch takes batches of twice the size; one of training stays.
    """
    dataset = loader.dataset
    workers = loader.num_workers
    # Batches of float32: one is complete, one is stacked, and unpacking takes a third.
    in_reader = 2 if all(map(is_plain, dataset.encodings)) else 3
    if workers:  # each also has those that it has loaded
        ahead = 0.0
        held = workers * (loader.prefetch_factor + in_reader) + 1  # 1: in the model
    else:  # those under way are as they are stored
        ahead = dataset.batches_ahead * dataset.dtype.itemsize / 4
        held = in_reader + 1
    # Validation's batches have twice the size, and one of training stays meanwhile.
    batches = max(ahead + held, 2 * held + 1)
    readers = max(1, workers)
    # The workers of both loaders stay, with their caches.
    caches = 2 * workers if workers else 1
    num_values = batch_size * len(dataset.variables) * math.prod(dataset.grid.window)
    batch_bytes = num_values * 4
    num_chunks = len(dataset.levels_in_chunk) * math.prod(dataset.num_chunks)
    chunk_bytes = max(dataset.levels_in_chunk.values()) * dataset.level_bytes
    chunks = readers * min(dataset.concurrency, num_chunks)
    return (
        batches * batch_bytes + chunks * chunk_bytes + caches * 1e6 * dataset.cache_mb
    )


@rank_zero_only
def print_line(text: str) -> None:
    """Print a line, above a progress bar if there is one."""
    tqdm.write(f"loader    {text}")
