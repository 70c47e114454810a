"""The training and the validation samples, and the DataLoaders that load them."""

import signal
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import forkserver
from typing import Any, Literal

import torch
from torch.utils.data import BatchSampler, DataLoader

from src.data.fast_dataset import FastDataset
from src.data.look_ahead import LookAhead
from src.data.pytorch_dataset import FieldDataset, Split
from src.data.sampler import ResumableBatches, ResumableLoader, epoch_order
from src.run.errors import UserError


class Loaders:
    """The training and validation samples, and the loaders for them.

    Args:
        dataset: FastDataset, CloudDataset, OceanDataset, or the import path of your own.
        batch_size: samples in one optimiser step, of all processes together.
        num_workers: processes that load batches, for each training process; with 0 it loads them
            itself.
        prefetch_factor: batches that each worker loads ahead.
        multiprocessing_context: how workers start; not by fork, which hangs once a store is open.
        seed: seed of the order of the samples.
        rank: number of this process.
        world_size: how many processes train together, each on its part of every batch.

    Raises:
        UserError: there is no training batch, or no validation sample for each process.
    """

    def __init__(
        self,
        dataset: Callable[[Split], FieldDataset] = FastDataset,
        batch_size: int = 16,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        multiprocessing_context: Literal["forkserver", "spawn"] = "forkserver",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        # jsonargparse makes a factory of class_path and init_args: only the split is missing.
        self.train_set = dataset("train")
        self.val_set = dataset("val")
        self.test_set = dataset("test") if self.val_set.test_period else None
        self.batch_size = batch_size
        self.num_workers = num_workers
        # PyTorch takes these two only if there are workers.
        self.of_workers: dict[str, Any] = {}
        if num_workers:
            start_forkserver()
            self.of_workers["prefetch_factor"] = prefetch_factor
            self.of_workers["multiprocessing_context"] = multiprocessing_context
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        num_train = len(self.train_set)
        num_val = len(self.val_set)
        if not 0 < batch_size <= num_train or num_val == 0:
            # It would train on nothing, silently.
            raise UserError(
                f"data: {num_train} samples to train and {num_val} to validate, "
                f"batch_size {batch_size}; see window, stride, periods"
            )
        if world_size > min(batch_size, num_val):
            raise UserError(
                f"data: {world_size} processes cannot share a batch_size of {batch_size} "
                f"and {num_val} samples to validate"
            )
        self.steps_per_epoch = num_train // batch_size

    def train_loader(self, step: Callable[[], int]) -> DataLoader:
        """The rest of the epoch that step ``step()`` lies in: x (B, V, T, H, W), index (B,)."""
        batches = ResumableBatches(
            len(self.train_set),
            self.batch_size,
            self.seed,
            step,
            self.rank,
            self.world_size,
            getattr(self.train_set, "epoch_order", epoch_order),
        )
        ahead = self.read_ahead(batches, self.train_set)
        return ResumableLoader(self.train_set, batch_sampler=ahead, **self.options())

    def val_loader(self) -> DataLoader:
        """The validation samples, in their order: each on one rank, none twice."""
        number = len(self.val_set)
        start = number * self.rank // self.world_size
        stop = number * (self.rank + 1) // self.world_size
        return self.in_order(self.val_set, range(start, stop))

    def in_order(self, dataset: FieldDataset, samples: Sequence[int]) -> DataLoader:
        """These samples of a dataset, for scores."""
        size = self.batch_size // self.world_size
        batches = BatchSampler(samples, size, drop_last=False)
        ahead = self.read_ahead(batches, dataset)
        return DataLoader(dataset, batch_sampler=ahead, **self.options())

    def read_ahead(
        self, batches: Iterable[list[int]], dataset: FieldDataset
    ) -> Iterable[list[int]]:
        """The same batches, announced to a dataset that reads ahead."""
        # A worker cannot see the requests of this process, and loads ahead by itself.
        if hasattr(dataset, "prefetch") and not self.num_workers:
            return LookAhead(batches, dataset)
        return batches

    def options(self) -> dict[str, Any]:
        """What all loaders have in common."""
        return {
            "num_workers": self.num_workers,
            **self.of_workers,
            # Starting a worker takes longer than a short epoch, so they stay for the next one.
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),  # copies to a GPU are faster then
            "worker_init_fn": ignore_signals,
        }


def start_forkserver() -> None:
    """Start the process that workers are copies of, with signals ignored, unless it is there.

    A worker inherits that, so a signal before ignore_signals cannot end it. It also inherits what
    that process has imported; otherwise each worker would import Lightning again, for seconds.
    """
    forkserver.set_forkserver_preload(["lightning", "torch", "xarray"])
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    forkserver.ensure_running()
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def ignore_signals(worker_id: int) -> None:
    """Let a worker live through Ctrl-C and SIGTERM, which reach all processes of a run.

    The training process finishes its step, saves, and ends its workers itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
