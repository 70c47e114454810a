"""FastDataset's windows in an order that reads each chunk once in an epoch, with a small cache."""

import itertools
import math
from typing import Any

import numpy as np
from jsonargparse.typing import PositiveInt
from torch import distributed

from src.data.fast_dataset import FastDataset
from src.data.pytorch_dataset import Split
from src.errors import UserError


class ChunkStream(FastDataset):
    """Windows in an order in which a small cache suffices to read each chunk once.

    The windows whose first time step lies in the same row of chunks are a block. Each stream takes
    its share of the blocks in a random order, and shuffles the windows of some blocks together. A
    batch takes its windows in turn from all streams.

    Args:
        held: blocks that a stream shuffles together; more are closer to a random order.
        streams: streams side by side; a multiple of the ranks, so that ranks read other chunks,
            until the first stream ends.
        settings: those of FastDataset; cache_mb is at least what the held blocks take.

    Raises:
        UserError: ranks would read the same chunks, or the store has shards, which a cache does not
            bear: under load, TensorStore's reads ended with OUT_OF_RANGE.
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
        # With less, chunks would be read again and again, and nobody would notice. Windows of
        # several steps reach into the blocks behind their own. The next block is on its way before
        # the others are done (+ 1), and TensorStore's cache needs some room of its own (1.2).
        steps = self.grid.window[0]
        reach = 1 + math.ceil((steps - 1) / self.chunk[0])
        points = 1  # a chunk at the edge of the grid is decoded whole
        for axis, size in zip(("lat", "lon"), self.chunk[1:], strict=True):
            points *= math.ceil(self.lazy_fields.sizes[axis] / size) * size
        layers = sum(self.layers.values())
        block_mb = self.dtype.itemsize * layers * self.chunk[0] * points / 1e6
        # A rank reads the blocks of its own streams alone, until the first stream ends. Then its
        # windows come from all that are left, so for a while some chunks are read more than once.
        num_ranks = distributed.get_world_size() if distributed.is_initialized() else 1
        if streams % num_ranks:
            raise UserError(f"streams: {streams} is no multiple of {num_ranks} devices")
        if self.has_shards:
            raise UserError(f"{self.url} has shards: use FastDataset")
        own_streams = math.ceil(streams / num_ranks)
        needed = 1.2 * own_streams * (held * reach + 1) * block_mb
        self.cache_mb = max(self.cache_mb, needed)

    def epoch_order(self, num_samples: int, seed: int, epoch: int) -> list[int]:
        """The permutation of ``range(num_samples)`` for one epoch; a function of (seed, epoch)."""
        generator = np.random.default_rng([seed, epoch])
        # Samples are numbered step by step, and each first step has equally many.
        block_of_step = np.array(self.grid.starts[0]) // self.chunk[0]
        samples_a_step = num_samples // len(block_of_step)
        blocks = generator.permutation(np.unique(block_of_step))

        streams = []
        for number in range(self.streams):
            own_blocks = blocks[number :: self.streams]
            stream: list[int] = []
            for first in range(0, len(own_blocks), self.held):
                windows = []
                for block in sorted(own_blocks[first : first + self.held]):
                    # The blocks rise along the time axis, so the windows of one are neighbours.
                    first_step = np.searchsorted(block_of_step, block)
                    stop_step = np.searchsorted(block_of_step, block + 1)
                    first_window = first_step * samples_a_step
                    windows.append(np.arange(first_window, stop_step * samples_a_step))
                stream += generator.permutation(np.concatenate(windows)).tolist()
            streams.append(stream)

        # One window of each stream in turn. Streams that have ended are left out.
        turns = itertools.zip_longest(*streams)
        order = []
        for turn in turns:
            order += [window for window in turn if window is not None]
        return order
