"""Each rank's share of the epoch: the union over the ranks is the batch of a single process."""

from collections.abc import Callable, Iterator
from functools import partial

from torch.utils.data import Sampler

from src.data.orders import Order
from src.data.sampler import epoch_order


class TrainBatches(Sampler[list[int]]):
    """This rank's part of every global batch, from any step on.

    The whole epoch is permuted first, the same on all ranks, and then cut: rank r of R takes the
    samples r, r + R, r + 2R, ... of each global batch. ``DistributedSampler`` slices its
    permutation in the same interleaved way; what it cannot do is start inside an epoch.

    Args:
        num_samples: length of the dataset.
        seed: seed of the order.
        batch_size: samples in one optimiser step, all ranks together; a multiple of world_size.
        rank: of this process.
        world_size: number of processes.
        step: tells how many optimiser steps are done. A function and not a number, because a
            resumed Trainer restores its counters after it has built the loaders.
        order: the permutation of an epoch; None shuffles all samples.
    """

    def __init__(
        self,
        num_samples: int,
        seed: int,
        batch_size: int,
        rank: int,
        world_size: int,
        step: Callable[[], int],
        order: Order | None = None,
    ) -> None:
        self.num_samples, self.seed, self.batch_size = num_samples, seed, batch_size
        self.rank, self.world_size, self.step = rank, world_size, step
        self.order = order or partial(epoch_order, num_samples)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, done = divmod(self.step(), len(self))
        order = self.order(self.seed, epoch)
        for number in range(done, len(self)):
            first = number * self.batch_size
            yield order[first + self.rank : first + self.batch_size : self.world_size]

    def __len__(self) -> int:
        """Steps in a whole epoch, which is what Lightning counts to, also when it resumes."""
        return self.num_samples // self.batch_size


class EvaluationSlice(Sampler[int]):
    """Samples rank, rank + R, rank + 2R, ... in their order, equally many on each of R ranks.

    Equally many, because every batch is a meeting of all ranks: a rank with one batch less would
    leave the others waiting for ever. So the last round is filled up with samples from the start.
    A sample belongs to rank ``index % R``; whoever evaluates leaves the others out (see
    ``AutoencoderModule.own``), and each counts once.
    """

    def __init__(self, num_samples: int, rank: int, world_size: int) -> None:
        self.num_samples, self.rank, self.world_size = num_samples, rank, world_size

    def __iter__(self) -> Iterator[int]:
        for number in range(len(self)):
            yield (number * self.world_size + self.rank) % self.num_samples

    def __len__(self) -> int:
        return -(-self.num_samples // self.world_size)  # rounded up
