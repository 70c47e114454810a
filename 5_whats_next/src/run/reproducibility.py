"""What a run needs to repeat to the bit, and to go on to the same bits after a kill.

This file imports nothing of this project, so you can copy it into yours. Take chapter 3's, which
knows the most.
"""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler


def worker_init_fn(worker_id: int) -> None:
    """Prepare a DataLoader's worker; PyTorch calls it there, once."""
    # No seeds here: PyTorch has given each worker its own.
    # Ctrl-C and SIGTERM reach workers too, but the training may need one more batch before it
    # saves. So they go on; a second SIGTERM ends a worker. one_line_errors kills those that are
    # left after an error: with this function copy src/run/errors.py and src/run/signals.py, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(
        signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL)
    )


def hash32(x: Tensor) -> Tensor:
    """Mix the low 32 bits of the integers ``x`` (int64, any shape) into [0, 2**32).

    A random generator has a state, which depends on what was drawn before. A hash has none: order
    and masks are hashes, so they are the same in every process, and after a resume.
    Source of the constants: https://github.com/skeeto/hash-prospector/issues/19
    """
    # Both multipliers are below 2**31, so no product leaves int64: nothing depends on how a device
    # wraps around.
    x = x & 0xFFFFFFFF
    x = (x ^ (x >> 16)) * 0x21F0AAAD & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x735A2D97 & 0xFFFFFFFF
    return x ^ (x >> 15)


def epoch_order(num_samples: int, seed: int, epoch: int) -> list[int]:
    """The permutation of ``range(num_samples)`` for one epoch; a function of (seed, epoch).

    The list takes about 40 bytes a sample in each process: 4 GB for 100 million samples.
    """
    # Hashed, because seed + epoch would give seed 1 the order that seed 0 has one epoch later.
    epoch_seed = hash32(hash32(torch.tensor(seed)) + epoch)
    generator = torch.Generator().manual_seed(int(epoch_seed))
    return torch.randperm(num_samples, generator=generator).tolist()


class ResumableBatches(Sampler[list[int]]):
    """This rank's part of the batches of an epoch that are left after ``step()`` optimiser steps.

    For ``DataLoader(dataset, batch_sampler=...)``. All ranks compute the same order and the same
    batches, so a step trains on the same samples for any number of ranks. PyTorch's own
    DistributedSampler cannot begin inside an epoch.

    Args:
        num_samples: length of the dataset.
        batch_size: samples of one optimiser step, of all ranks together. Samples that are left at
            the end of an epoch, and fill no batch, are skipped; another epoch skips other ones.
        seed: seed of the order.
        step: returns how many batches are trained on; called as an epoch begins. Lightning's
            global_step is that number with one optimiser and without gradient accumulation only;
            with another number samples come twice or never, without an error.
        rank: number of this process.
        world_size: how many processes train together.
        order: of the samples in an epoch, from (num_samples, seed, epoch).

    Raises:
        ValueError: the samples fill no batch, or the ranks cannot share one equally.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        seed: int,
        step: Callable[[], int],
        rank: int = 0,
        world_size: int = 1,
        order: Callable[[int, int, int], list[int]] = epoch_order,
    ) -> None:
        if num_samples < batch_size:
            raise ValueError(f"{num_samples} samples fill no batch of {batch_size}")
        if batch_size % world_size:
            raise ValueError(
                f"batch_size {batch_size} is no multiple of {world_size} ranks"
            )
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.step = step
        self.rank = rank
        self.world_size = world_size
        self.order = order

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the numbers of this rank's samples of each batch."""
        epoch, first_batch = divmod(self.step(), len(self))
        order = self.order(self.num_samples, self.seed, epoch)
        for number in range(first_batch, len(self)):
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield batch[self.rank :: self.world_size]

    def __len__(self) -> int:
        """Steps of a whole epoch, also where the next one begins in the middle."""
        return self.num_samples // self.batch_size


class ResumableLoader(DataLoader):
    """A loader whose position is that of its ResumableBatches, so it has no state of its own.

    Lightning warns on a resume inside an epoch if a loader has not got these two methods.
    """

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the batches ask for the step."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""
