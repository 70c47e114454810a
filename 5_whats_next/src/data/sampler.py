"""The order of the samples: a pure function of (seed, epoch), readable from any position."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from src.model.masking import hash32


def epoch_order(num_samples: int, seed: int, epoch: int) -> list[int]:
    """The permutation of ``range(num_samples)`` for one epoch."""
    # Hashed, because seed + epoch would give seed 1 the order that seed 0 has one epoch later.
    mixed = hash32(hash32(torch.tensor(seed)) + epoch)
    generator = torch.Generator().manual_seed(int(mixed))
    return torch.randperm(num_samples, generator=generator).tolist()


class EpochSampler(Sampler[int]):
    """Shuffle anew in every epoch; start anywhere in it.

    ``RandomSampler`` draws from a generator, so the order of epoch 7 depends on epochs 0 to 6
    having been drawn before it. Here a resumed run asks for epoch 7 from sample 112 on, and gets
    just that.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples, self.seed = num_samples, seed
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, and how many of its samples to leave out: those already used."""
        self.epoch, self.start = epoch, start

    def __iter__(self) -> Iterator[int]:
        yield from epoch_order(self.num_samples, self.seed, self.epoch)[self.start :]

    def __len__(self) -> int:
        return self.num_samples - self.start
