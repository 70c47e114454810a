"""The training and the validation samples, and the DataLoaders that load them."""

import signal
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch.utils.data import DataLoader, Sampler

from src.data.fast_dataset import FastDataset
from src.data.look_ahead import LookAhead
from src.data.pytorch_dataset import FieldDataset, Split
from src.run.errors import UserError
from src.run.reproducibility import ResumableBatches, epoch_order, worker_init_fn

# Large packages that start no thread when they are imported, which a copy would not have. Python's
# own way, to import the script itself, works since 3.13.8 only:
# https://github.com/python/cpython/issues/137996
PRELOADED = ("lightning", "torch", "xarray")


def start_forkserver() -> None:
    """Start the process that workers are copies of, unless they are spawned, with signals ignored.

    A terminal and a cluster signal all processes. Until worker_init_fn runs, a worker would die of
    it, and the training without a checkpoint. Workers inherit from this process to ignore it, and
    what it has imported: otherwise each of them would import Lightning again, for seconds.
    """
    modules = [name for name in PRELOADED if name in sys.modules]
    forkserver.set_forkserver_preload(modules)
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, signal.SIG_IGN)
    forkserver.ensure_running()
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Loaders:
    """The training and validation samples, and the loaders for them.

    Args:
        dataset: FastDataset, CloudDataset, OceanDataset, DummyDataset, or the path of your own.
        batch_size: samples in one optimiser step.
        num_workers: processes that load batches, for each training process; with 0 it loads them
            itself.
        prefetch_factor: batches that each worker loads ahead.
        multiprocessing_context: how workers start; not by fork, which hangs once a store is open.
        seed: seed of the order of the samples.

    Raises:
        UserError: there is no training batch, or no validation sample.
    """

    def __init__(
        self,
        dataset: Callable[[Split], FieldDataset] = FastDataset,
        batch_size: PositiveInt = 16,
        num_workers: NonNegativeInt = 0,
        prefetch_factor: PositiveInt = 2,
        multiprocessing_context: Literal["forkserver", "spawn"] = "forkserver",
        seed: int = 0,
    ) -> None:
        # jsonargparse makes a factory of class_path and init_args: only the split is missing.
        self.train_set = dataset("train")
        self.val_set = dataset("val")
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        # PyTorch takes these two only if there are workers.
        self.worker_settings: dict[str, Any] = {}
        if num_workers:
            self.worker_settings["prefetch_factor"] = prefetch_factor
            self.worker_settings["multiprocessing_context"] = multiprocessing_context
            if multiprocessing_context == "forkserver":
                start_forkserver()
        self.steps_per_epoch = len(self.train_set) // batch_size
        if not self.steps_per_epoch or not len(self.val_set):
            # It would train on nothing, silently.
            raise UserError(
                f"data: {len(self.train_set)} to train and {len(self.val_set)} to validate, "
                f"batch_size {batch_size}; see window, stride, periods"
            )

    def train_loader(self, step: Callable[[], int]) -> DataLoader:
        """The rest of the epoch that step ``step()`` lies in: x (B, V, T, H, W), index (B,)."""
        batches = self.train_batches(step)
        return DataLoader(self.train_set, batch_sampler=batches, **self.options())

    def train_batches(
        self, step: Callable[[], int], rank: int = 0, world_size: int = 1
    ) -> Sampler[list[int]]:
        """One rank's batches, in the dataset's own order, if it has one."""
        batches = ResumableBatches(
            len(self.train_set),
            self.batch_size,
            self.seed,
            step,
            rank,
            world_size,
            getattr(self.train_set, "epoch_order", epoch_order),
        )
        # A worker cannot see the requests of this process, and loads ahead by itself.
        if hasattr(self.train_set, "prefetch") and not self.num_workers:
            return LookAhead(batches, self.train_set)
        return batches

    def val_loader(self) -> DataLoader:
        """All validation samples, in their order."""
        return DataLoader(
            self.val_set, batch_size=2 * self.batch_size, **self.options()
        )

    def options(self) -> dict[str, Any]:
        """What all loaders have in common."""
        return {
            "num_workers": self.num_workers,
            **self.worker_settings,
            # Starting a worker takes longer than a short epoch, so they stay for the next one.
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),  # copies to a GPU are faster then
            "worker_init_fn": worker_init_fn,
            # The workers' seeds come from here. Without it they come from torch's global generator,
            # and depend on all that drew from it before, the model's initial weights included.
            "generator": torch.Generator().manual_seed(self.seed),
        }
