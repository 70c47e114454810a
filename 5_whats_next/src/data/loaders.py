"""Which samples are in which batch, and the DataLoaders that load them."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch.utils.data import DataLoader, Sampler

from src.data.fast_dataset import FastDataset, LookAhead
from src.data.pytorch_dataset import FieldDataset, Split
from src.data.timed_loader import TimedLoader
from src.errors import UserError
from src.model.masking import hash32
from src.reproducibility import worker_init_fn


# RandomSampler draws from one generator, so its order of epoch 7 depends on epochs 0 to 6 having
# been drawn before it: a resumed run would have to draw them again.
def epoch_order(num_samples: int, seed: int, epoch: int) -> list[int]:
    """The permutation of ``range(num_samples)`` for one epoch; a function of (seed, epoch)."""
    # Hashed, because seed + epoch would give seed 1 the order that seed 0 has one epoch later.
    epoch_seed = hash32(hash32(torch.tensor(seed)) + epoch)
    generator = torch.Generator().manual_seed(int(epoch_seed))
    return torch.randperm(num_samples, generator=generator).tolist()


@dataclass(eq=False)  # two samplers are never compared, and stay hashable
class TrainBatches(Sampler[list[int]]):
    """The batches of an epoch that are left after ``step()`` optimiser steps."""

    num_samples: int
    batch_size: int  # samples that are left at the end of an epoch, and fill no batch, are skipped
    seed: int
    # A function, because one loader serves all epochs and asks at the start of each.
    step: Callable[[], int]
    order: Callable[
        [int, int, int], list[int]
    ]  # epoch_order, or another one of the dataset

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first_batch = divmod(self.step(), len(self))
        order = self.order(self.num_samples, self.seed, epoch)
        for number in range(first_batch, len(self)):
            yield order[number * self.batch_size : (number + 1) * self.batch_size]

    # Steps of a whole epoch, also if the next one begins in the middle.
    def __len__(self) -> int:
        return self.num_samples // self.batch_size


# A terminal and a cluster signal all processes. Until worker_init_fn runs, a worker would die of
# it, and the training without a checkpoint. Workers inherit from this process that they ignore it.
def start_forkserver() -> None:
    """Start the process that workers are copies of, while signals are ignored."""
    handlers = {
        n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM)
    }
    forkserver.ensure_running()
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Loaders:
    """The training and validation samples, and the loaders for them.

    Args:
        dataset: FastDataset, CloudDataset, OceanDataset, DummyDataset, or the path of your own.
        batch_size: samples in one optimiser step.
        num_workers: processes that load data for each training process; 0: it loads itself.
        prefetch_factor: batches that each worker loads ahead.
        multiprocessing_context: how workers start; fork hangs once a store is open.
        seed: seed of the order of the samples.
    """

    def __init__(
        self,
        dataset: Callable[[Split], FieldDataset] = FastDataset,
        batch_size: PositiveInt = 16,
        num_workers: NonNegativeInt = 0,
        prefetch_factor: PositiveInt = 2,
        multiprocessing_context: Literal["forkserver", "spawn", "fork"] = "forkserver",
        seed: int = 0,
    ) -> None:
        # jsonargparse makes a factory of class_path and init_args: only the split is missing.
        self.train_set, self.val_set = dataset("train"), dataset("val")
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        # PyTorch takes these two only if there are workers.
        self.worker_settings: dict[str, Any] = {"prefetch_factor": prefetch_factor}
        self.worker_settings["multiprocessing_context"] = multiprocessing_context
        if num_workers:
            start_forkserver()
        self.steps_per_epoch = len(self.train_set) // batch_size
        if not self.steps_per_epoch or not len(
            self.val_set
        ):  # would train on nothing, silently
            counts = (
                f"{len(self.train_set)} to train and {len(self.val_set)} to validate"
            )
            raise UserError(
                f"data: {counts}, batch_size {batch_size}; see window, stride, months"
            )

    def train_loader(self, step: Callable[[], int]) -> DataLoader:
        """The rest of the epoch that step ``step()`` lies in: x (B, V, T, H, W), index (B,)."""
        batches = self.with_look_ahead(TrainBatches(**self.batch_arguments(step)))
        settings = {"batch_sampler": batches, **self.options()}
        return TimedLoader(self.train_set, self.batch_size, **settings)

    def batch_arguments(self, step: Callable[[], int]) -> dict[str, Any]:
        """The arguments of TrainBatches; a dataset may have an order of its own."""
        order = getattr(self.train_set, "epoch_order", epoch_order)
        arguments = {"num_samples": len(self.train_set), "batch_size": self.batch_size}
        return arguments | {"seed": self.seed, "step": step, "order": order}

    def with_look_ahead(self, batches: Sampler[list[int]]) -> Sampler[list[int]]:
        """The same batches, announced to a dataset that can use it; workers load ahead anyway."""
        if isinstance(self.train_set, FastDataset) and not self.num_workers:
            return LookAhead(batches, self.train_set)
        return batches

    def val_loader(self) -> DataLoader:
        """All validation samples, in their order."""
        return DataLoader(self.val_set, 2 * self.batch_size, **self.options())

    def options(self, rank: int = 0) -> dict[str, Any]:
        """What all loaders have in common; chapter 1 has several training processes (ranks)."""
        return {
            "num_workers": self.num_workers,
            **(self.worker_settings if self.num_workers else {}),
            # Starting a worker takes longer than a short epoch, so they stay for the next one.
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),  # copies to a GPU are faster then
            "worker_init_fn": worker_init_fn,
            # The workers' seeds come from here. Without it they come from torch's global generator,
            # and depend on all that drew from it before, the model's initial weights included.
            # Each rank has its own.
            "generator": torch.Generator().manual_seed(self.seed + 1000 * rank),
        }
