"""The training and the validation samples, and the DataLoaders that load them."""

from collections.abc import Callable
from typing import Any

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch.utils.data import DataLoader

from src.data.pytorch_dataset import FieldDataset, OceanDataset, Split
from src.run.errors import UserError
from src.run.reproducibility import ResumableBatches, worker_init_fn


class Loaders:
    """The training and validation samples, and the loaders for them.

    Args:
        dataset: OceanDataset, DummyDataset, CIFAR10Dataset, or the import path of your own.
        batch_size: samples in one optimiser step.
        num_workers: processes that load batches, for each training process; with 0 it loads them
            itself.
        seed: seed of the order of the samples.

    Raises:
        UserError: there is no training batch, or no validation sample.
    """

    def __init__(
        self,
        dataset: Callable[[Split], FieldDataset] = OceanDataset,
        batch_size: PositiveInt = 16,
        num_workers: NonNegativeInt = 0,
        seed: int = 0,
    ) -> None:
        # jsonargparse makes a factory of class_path and init_args: only the split is missing.
        self.train_set = dataset("train")
        self.val_set = dataset("val")
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.steps_per_epoch = len(self.train_set) // batch_size
        if not self.steps_per_epoch or not len(self.val_set):
            # It would train on nothing, silently.
            raise UserError(
                f"data: {len(self.train_set)} to train and {len(self.val_set)} to validate, "
                f"batch_size {batch_size}; see window, stride, periods"
            )

    def train_loader(self, step: Callable[[], int]) -> DataLoader:
        """The rest of the epoch that step ``step()`` lies in: x (B, V, T, H, W), index (B,)."""
        batches = ResumableBatches(
            len(self.train_set), self.batch_size, self.seed, step
        )
        return DataLoader(self.train_set, batch_sampler=batches, **self.options())

    def val_loader(self) -> DataLoader:
        """All validation samples, in their order."""
        return DataLoader(
            self.val_set, batch_size=2 * self.batch_size, **self.options()
        )

    def options(self) -> dict[str, Any]:
        """What all loaders have in common."""
        return {
            "num_workers": self.num_workers,
            # Starting a worker takes longer than a short epoch, so they stay for the next one.
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),  # copies to a GPU are faster then
            "worker_init_fn": worker_init_fn,
            # The workers' seeds come from here. Without it they come from torch's global generator,
            # and depend on all that drew from it before, the model's initial weights included.
            "generator": torch.Generator().manual_seed(self.seed),
        }
