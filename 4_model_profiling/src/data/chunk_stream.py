"""FastDataset's windows in an order that reads each chunk once in an epoch, with a small cache."""

import math
from typing import Any

import numpy as np
from jsonargparse.typing import PositiveInt

from src.data.fast_dataset import FastDataset
from src.data.pytorch_dataset import Split


class ChunkStream(FastDataset):
    """Windows in an order in which a small cache suffices to read each chunk once.

    Args:
        held: blocks that a stream shuffles together; more are closer to a random order.
        streams: streams side by side; a multiple of the ranks, so that ranks read other chunks.
        settings: those of FastDataset; cache_mb is at least what the held blocks take.
    """

    # The windows whose first month lies in the same row of chunks are a block. Blocks come in a
    # random order, and the windows of some blocks at a time are shuffled together. A batch takes
    # its windows in turn from several such streams.
    def __init__(
        self,
        split: Split,
        held: PositiveInt = 2,
        streams: PositiveInt = 4,
        **settings: Any,
    ) -> None:
        super().__init__(split, **settings)
        self.held, self.streams = held, streams
        # With less, chunks would be read again and again, and nobody would notice. Windows of
        # several months reach into the blocks behind their own. The next block is on its way before
        # the others are done (+ 1), and TensorStore's cache needs some room of its own (1.2).
        reach = 1 + math.ceil((self.grid.window[0] - 1) / self.chunk[1])
        points = self.lazy_fields.sizes["lat"] * self.lazy_fields.sizes["lon"]
        block = 4 * len(self.variables) * self.chunk[1] * points / 1e6
        self.cache_mb = max(self.cache_mb, 1.2 * streams * (held * reach + 1) * block)

    def epoch_order(self, num_samples: int, seed: int, epoch: int) -> list[int]:
        """The permutation of ``range(num_samples)`` for one epoch; a function of (seed, epoch)."""
        generator = np.random.default_rng([seed, epoch])
        # Samples are numbered month by month, and each month has equally many.
        windows_per_month = num_samples // len(self.grid.starts[0])
        block = np.repeat(
            np.array(self.grid.starts[0]) // self.chunk[1], windows_per_month
        )
        blocks = generator.permutation(np.unique(block))
        streams = []
        for own in (blocks[number :: self.streams] for number in range(self.streams)):
            groups = [
                own[first : first + self.held]
                for first in range(0, len(own), self.held)
            ]
            streams += [
                [
                    generator.permutation(np.flatnonzero(np.isin(block, g)))
                    for g in groups
                ]
            ]
        # One window of each stream in turn; what is left of longer streams comes at the end.
        order = [np.concatenate(stream) for stream in streams if stream]
        shortest = min(map(len, order))
        turns = np.stack([stream[:shortest] for stream in order], axis=1).ravel()
        return np.concatenate(
            [turns, *(stream[shortest:] for stream in order)]
        ).tolist()
