"""The order of the samples: a function of (seed, epoch), with the position given by the step.

This file imports nothing of this project, so you can copy it into yours.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler


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


@dataclass(eq=False)
class ResumableBatches(Sampler[list[int]]):
    """The batches of an epoch that are left after ``step()`` optimiser steps.

    For ``DataLoader(dataset, batch_sampler=...)``. PyTorch's own RandomSampler would have to draw
    the orders of all earlier epochs again before it could go on inside one.

    All ranks compute the same order and the same batches, and take their part of each. So a step
    trains on the same samples for any number of ranks.

    Args:
        num_samples: length of the dataset; at least one batch.
        batch_size: samples of one optimiser step. Samples that are left at the end of an epoch, and
            fill no batch, are skipped; another epoch skips other ones.
        seed: seed of the order.
        step: returns how many batches are trained on; called as an epoch begins. Lightning's
            global_step is that number with one optimiser and without gradient accumulation only;
            with another number samples come twice or never, without an error.
        rank: number of this process.
        world_size: how many processes train together; at most batch_size.
        order: another permutation than a random one, with the arguments of epoch_order.
    """

    num_samples: int
    batch_size: int
    seed: int
    step: Callable[[], int]
    rank: int = 0
    world_size: int = 1
    order: Callable[[int, int, int], list[int]] = epoch_order

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
