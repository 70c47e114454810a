"""Who decides in which order an epoch goes through the samples: the dataset, or chance alone."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from src.data.sampler import EpochSampler, epoch_order

Order = Callable[[int, int], list[int]]  # the permutation for (seed, epoch)


def order_of(dataset: Any) -> Order:
    """The dataset's own ``epoch_order(seed, epoch)``, if it has one; else all samples shuffled."""
    return getattr(dataset, "epoch_order", None) or partial(epoch_order, len(dataset))


class OrderSampler(EpochSampler):
    """An EpochSampler that takes the order of the dataset."""

    def __init__(self, dataset: Any, seed: int) -> None:
        super().__init__(len(dataset), seed)
        self.order = order_of(dataset)

    def __iter__(self) -> Iterator[int]:
        yield from self.order(self.seed, self.epoch)[self.start :]
