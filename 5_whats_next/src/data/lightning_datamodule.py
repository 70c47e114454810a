"""The data of chapter 0 as a LightningDataModule: the same batches, shared out among the ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from src.data.guarded_batches import GuardedBatches, InterruptibleLoader
from src.data.lightning_sampler import EvaluationSlice
from src.data.loader_settings import StartMethod, worker_settings
from src.data.look_ahead import batches_of, look_ahead
from src.data.orders import order_of
from src.data.pytorch_dataset import FieldDataset, Split
from src.errors import UserError
from src.lightning_ranks import seed_of_rank, shared_fate
from src.reproducibility import worker_init_fn


class FieldDataModule(L.LightningDataModule):
    """Training and validation samples of a FieldDataset.

    Lightning calls ``prepare_data`` on one process per machine, lets the others wait, and then
    calls ``setup`` on all of them. There is no test split: the ocean data are too short for a third
    part with gaps. ``test`` and ``predict`` use the validation samples.

    Args:
        dataset: OceanDataset, DummyDataset, CIFAR10Dataset, or the import path of your own.
        batch_size: samples in one optimiser step, all devices together.
        num_workers: processes that load data beside each training process; 0 means itself.
        pin_memory: page-locked memory, for faster copies to a GPU.
        persistent_workers: keep them from one epoch to the next.
        prefetch_factor: batches that each of them has ready, or is loading.
        multiprocessing_context: how workers start; fork hangs once a store is open.
        seed: seed of the order of the samples.
    """

    train_set: FieldDataset
    val_set: FieldDataset

    def __init__(
        self,
        dataset: Callable[[Split], FieldDataset],
        batch_size: int = 16,
        num_workers: int = 0,
        pin_memory: bool = False,
        persistent_workers: bool = True,
        prefetch_factor: int = 2,
        multiprocessing_context: StartMethod = "forkserver",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self.worker_settings = worker_settings(
            num_workers, persistent_workers, prefetch_factor, multiprocessing_context
        )
        self.failure: UserError | None = None

    def prepare_data(self) -> None:
        """Download what is missing, once per machine.

        Building a dataset downloads, so this builds one and throws it away: an attribute that is
        set here exists on rank 0 only. A failure is kept for ``setup``. Raised here it would end
        this process, and leave the others at the barrier.
        """
        try:
            self.dataset("train")
        except UserError as error:
            self.failure = error

    def setup(self, stage: str) -> None:
        """Build the datasets, on every rank. Raises SharedError, on all ranks, if one fails."""
        with shared_fate():  # on its own: without the file the other ranks would download, too
            if self.failure:
                raise self.failure
        with shared_fate():
            self.train_set, self.val_set = self.dataset("train"), self.dataset("val")
            self.check_batch_size()

    def check_batch_size(self) -> None:
        """Raise UserError if the devices or the samples cannot share ``batch_size``."""
        size, devices, samples = self.batch_size, self.world_size, len(self.train_set)
        if size < 1 or size % devices:
            raise UserError(
                f"data.batch_size: {size} samples cannot be shared by {devices} devices; "
                f"allowed: multiples of {devices}"
            )
        if size > samples:
            raise UserError(
                f"data.batch_size: {size} does not fit the {samples} training samples; "
                f"allowed: 1 to {samples}"
            )

    @property
    def world_size(self) -> int:
        """Number of processes, each with one device."""
        return self.trainer.world_size if self.trainer else 1

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self.trainer.global_rank if self.trainer else 0

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps; it does not depend on the number of devices."""
        return len(self.train_set) // self.batch_size

    def train_dataloader(self) -> DataLoader:
        self.guard = GuardedBatches(
            len(self.train_set),
            self.seed,
            self.batch_size,
            self.rank,
            self.world_size,
            step=lambda: self.trainer.global_step if self.trainer else 0,
            order=order_of(self.train_set),
        )
        batches = look_ahead(self.guard, self.train_set, self.num_workers)
        settings = self.new_loader.keywords
        return InterruptibleLoader(self.train_set, batch_sampler=batches, **settings)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Compare a training batch with what its step asks for; Lightning calls this."""
        if self.trainer and self.trainer.training and len(batch):
            self.guard.check(batch[1], self.trainer.global_step)
        return batch

    def val_dataloader(self) -> DataLoader:
        own, size = self.own_samples()
        batches = batches_of(own, size, self.val_set, self.num_workers, drop_last=False)
        return self.new_loader(self.val_set, **batches)

    def own_samples(self) -> tuple[EvaluationSlice, int]:
        """This rank's part of the validation samples, and how many of them make a batch."""
        own = EvaluationSlice(len(self.val_set), self.rank, self.world_size)
        return own, min(max(1, 2 * self.batch_size // self.world_size), len(own))

    def test_dataloader(self) -> DataLoader:
        return self.val_dataloader()

    def predict_dataloader(self) -> DataLoader:
        # Not ahead: Lightning warns of a sampler of batches here, since it may leave some out.
        own, size = self.own_samples()
        return self.new_loader(self.val_set, batch_size=size, sampler=own)

    @property
    def new_loader(self) -> partial[DataLoader]:
        """DataLoader with the settings that all loaders share."""
        return partial(
            DataLoader,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            **self.worker_settings,
            worker_init_fn=worker_init_fn,
            # With the same seed on all ranks, worker 0 of rank 1 would repeat worker 0 of rank 0.
            generator=torch.Generator().manual_seed(seed_of_rank(self.seed, self.rank)),
        )

    def fingerprint(self) -> dict[str, Any]:
        """What decides the batches; a checkpoint keeps it, and a resumed run compares it."""
        return {
            "batch_size": self.batch_size,
            "seed": self.seed,
            "training samples": len(self.train_set),
            "sample_shape": list(self.train_set.sample_shape),
            "mean": [float(mean) for mean in self.train_set.mean],
        }
