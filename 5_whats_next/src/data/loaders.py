"""DataLoaders for training and validation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.data import DataLoader, SequentialSampler

from src.data.loader_settings import StartMethod, worker_settings
from src.data.look_ahead import batches_of
from src.data.orders import OrderSampler
from src.data.pytorch_dataset import FieldDataset, Split
from src.data.sampler import EpochSampler
from src.errors import UserError
from src.reproducibility import worker_init_fn


@dataclass
class Loaders:
    """The two loaders, their datasets, and the sampler that says where the training starts."""

    train: DataLoader
    val: DataLoader
    train_set: FieldDataset
    val_set: FieldDataset
    sampler: EpochSampler
    steps_per_epoch: int

    def __enter__(self) -> "Loaders":
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers now.

        Left to the garbage collector they end late, and may take five seconds each. A DataLoader
        keeps persistent workers in this attribute, and offers no other way to let go of them.
        """
        self.train._iterator = self.val._iterator = None


def make_loaders(
    dataset: Callable[[Split], FieldDataset],
    batch_size: int = 16,
    num_workers: int = 0,
    pin_memory: bool = False,
    persistent_workers: bool = True,
    prefetch_factor: int = 2,
    multiprocessing_context: StartMethod = "forkserver",
    seed: int = 0,
) -> Loaders:
    """Build the training and the validation loader.

    Args:
        dataset: OceanDataset, DummyDataset, CIFAR10Dataset, or the import path of your own.
        batch_size: samples in one optimiser step.
        num_workers: processes that load data beside the training; 0 loads in the training process.
        pin_memory: page-locked memory, for faster copies to a GPU.
        persistent_workers: keep them from one epoch to the next.
        prefetch_factor: batches that each of them has ready, or is loading.
        multiprocessing_context: how workers start; fork hangs once a store is open.
        seed: seed of the order of the samples.
    """
    train_set, val_set = dataset("train"), dataset("val")
    if batch_size > len(train_set):
        raise UserError(
            f"data.batch_size: {batch_size} does not fit the {len(train_set)} training samples; "
            f"allowed: 1 to {len(train_set)}"
        )
    sampler = OrderSampler(train_set, seed)
    new_loader: Callable[..., DataLoader] = partial(
        DataLoader,
        num_workers=num_workers,
        pin_memory=pin_memory,
        **worker_settings(
            num_workers, persistent_workers, prefetch_factor, multiprocessing_context
        ),
        worker_init_fn=worker_init_fn,
        # The workers' seeds come from here. Without it they come from torch's global generator, and
        # depend on all that drew from it before, the model's initial weights included.
        generator=torch.Generator().manual_seed(seed),
    )
    # drop_last: all steps average over the same number of samples, none is noisier than the others.
    train = new_loader(
        train_set, **batches_of(sampler, batch_size, train_set, num_workers, drop_last=True)
    )
    in_order, val_size = SequentialSampler(val_set), min(2 * batch_size, len(val_set))
    val = new_loader(
        val_set, **batches_of(in_order, val_size, val_set, num_workers, drop_last=False)
    )
    return Loaders(train, val, train_set, val_set, sampler, len(train_set) // batch_size)
