"""FastDataset's windows in an order that reads each chunk once in an epoch, with a small cache."""

import itertools
import math
from typing import Any

import numpy as np
from jsonargparse.typing import PositiveInt
from torch import distributed

from src.data.fast_dataset import FastDataset
from src.data.pytorch_dataset import Split


class ChunkStream(FastDataset):
    """Windows in an order in which a small cache suffices to read each chunk once.

    The windows whose first time step lies in the same row of chunks are a block. Each stream takes
    its share of the blocks in a random order, and shuffles the windows of some blocks together. A
    batch takes its windows in turn from all streams.

    Args:
        held: blocks that a stream shuffles together; more are closer to a random order.
        streams: how many run side by side. With a multiple of the number of ranks, each rank reads
            its own chunks until the first stream ends.
        settings: those of FastDataset; cache_mb is at least what the held blocks take.

    Raises:
        UserError: the store has shards, which a cache does not bear: under load, TensorStore's
            reads ended with OUT_OF_RANGE.
    """

    def __init__(
        self,
        split: Split,
        held: PositiveInt = 2,
        streams: PositiveInt = 4,
        **settings: Any,
    ) -> None:
        super().__init__(split, **settings)
        self.held = held
        self.streams = streams
        # With less, chunks would be read again, unnoticed. A window of several steps reaches into
        # later blocks (reach). One more block is loading (+ 1). 1.2: TensorStore's own overhead.
        steps = self.grid.window[0]
        reach = 1 + math.ceil((steps - 1) / self.chunk[0])
        num_places = math.prod(self.num_chunks[1:])
        block_mb = (
            sum(self.levels_in_chunk.values()) * self.level_bytes * num_places / 1e6
        )
        # A rank reads the blocks of its own streams alone, until the first stream ends. Then its
        # windows come from all that are left, so for a while some chunks are read more than once.
        num_ranks = distributed.get_world_size() if distributed.is_initialized() else 1
        # A rank takes part in this many streams; in all, if the numbers have no common divisor.
        own_streams = streams // math.gcd(streams, num_ranks)
        num_blocks = own_streams * (held * reach + 1)
        self.cache_mb = max(self.cache_mb, 1.2 * num_blocks * block_mb)

    def epoch_order(self, num_samples: int, seed: int, epoch: int) -> list[int]:
        """The permutation of ``range(num_samples)`` for one epoch; a function of (seed, epoch)."""
        generator = np.random.default_rng([seed, epoch])
        # Windows are numbered step by step, and each step has equally many: those of a block follow
        # one another.
        block_of_step = np.array(self.grid.starts[0]) // self.chunk[0]
        samples_a_step = num_samples // len(block_of_step)
        edges = (np.flatnonzero(np.diff(block_of_step)) + 1) * samples_a_step
        blocks = np.split(np.arange(num_samples), edges)

        order_of_blocks = generator.permutation(len(blocks))
        streams = []
        for number in range(self.streams):
            own_blocks = order_of_blocks[number :: self.streams]
            stream: list[int] = []
            for first in range(0, len(own_blocks), self.held):
                together = sorted(own_blocks[first : first + self.held])
                windows = np.concatenate([blocks[block] for block in together])
                stream += generator.permutation(windows).tolist()
            streams.append(stream)

        # One window of each stream in turn. Streams that have ended are left out.
        turns = itertools.zip_longest(*streams)
        order = []
        for turn in turns:
            order += [window for window in turn if window is not None]
        return order
