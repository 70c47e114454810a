"""FastDataset's windows in an order that reads each chunk once in an epoch, with a small cache."""

import itertools
import math
from typing import Any

import numpy as np
from torch import distributed

from src.data.fast_dataset import FastDataset
from src.data.fields import AXES
from src.data.pytorch_dataset import Split
from src.run.errors import UserError


class ChunkStream(FastDataset):
    """Windows in an order in which a small cache suffices to read each chunk once.

    The windows whose first time step lies in the same row of chunks are a block. The blocks follow
    one another in a random order, which is cut into streams of equal length. Each stream shuffles
    the windows of some blocks together, and a batch takes its windows from all streams in turn.

    Args:
        split: which period the windows are from.
        held: blocks that a stream shuffles together; more are closer to a random order.
        streams: how many run side by side. With a multiple of the number of ranks, each rank reads
            its own chunks, but for the blocks that are cut in two.
        settings: those of FastDataset; cache_mb is at least what the held blocks take.
    """

    def __init__(
        self, split: Split, held: int = 2, streams: int = 4, **settings: Any
    ) -> None:
        super().__init__(split, **settings)
        self.held = held
        self.streams = streams
        # Where variables differ, the longest.
        self.chunk_steps = max(field.chunk["time"] for field in self.stored)
        # With less, chunks would be read again, unnoticed. A window of several steps reaches into
        # later blocks (reach). One more block is loading (+ 1). 1.2: TensorStore's own overhead.
        reach = 1 + math.ceil((self.grid.window[0] - 1) / self.chunk_steps)
        num_ranks = distributed.get_world_size() if distributed.is_initialized() else 1
        # A rank takes part in this many streams; in all, if the numbers have no common divisor.
        own_streams = streams // math.gcd(streams, num_ranks)
        num_blocks = own_streams * (held * reach + 1)
        self.cache_mb = max(self.cache_mb, 1.2 * num_blocks * self.block_mb())

    def block_mb(self) -> float:
        """Megabytes of the decoded chunks in a row of them along latitude and longitude."""
        megabytes = {}
        for field in self.stored:
            # Levels that lie in the same chunk count once.
            levels = field.chunk.get("level", 1)
            values = levels * field.chunk["time"]
            for axis in AXES[1:]:
                # The last chunk may reach beyond the edge, and is decoded whole.
                size = field.chunk[axis]
                values *= math.ceil(self.fields.sizes[axis] / size) * size
            place = field.array, (field.level or 0) // levels
            megabytes[place] = values * field.dtype.itemsize / 1e6
        return sum(megabytes.values())

    def epoch_order(self, num_samples: int, seed: int, epoch: int) -> list[int]:
        """The permutation of ``range(num_samples)`` for one epoch; a function of (seed, epoch).

        Raises:
            UserError: there are fewer blocks than streams.
        """
        generator = np.random.default_rng([seed, epoch])
        # Windows are numbered step by step, and each step has equally many: those of a block follow
        # one another.
        block_of_step = np.array(self.grid.starts[0]) // self.chunk_steps
        block_of_window = np.repeat(block_of_step, num_samples // len(block_of_step))
        blocks = np.unique(block_of_step)
        if len(blocks) < self.streams:
            raise UserError(
                f"{self.url}: {self.streams} streams of {len(blocks)} rows of chunks along time, "
                "which would be read again and again; fewer streams, or FastDataset"
            )
        # Sorted by the blocks' places in a random order.
        place_of_block = generator.permutation(blocks[-1] + 1)
        place_of_window = place_of_block[block_of_window]
        order = np.argsort(place_of_window, kind="stable")

        # Neighbouring parts of the order go to streams 0, 2, 1, 3 (or 0, 4, 2, 6, 1, 5, 3, 7 of
        # eight): so the streams of a rank, for 2, 4 or 8 ranks, are neighbours.
        numbers = sorted(range(self.streams), key=lambda n: f"{n:09b}"[::-1])
        streams = {}
        for part, windows in enumerate(np.array_split(order, self.streams)):
            # Every other part runs backwards: so a block that is cut in two comes at the same time
            # in both, and a process that has both reads it once.
            places = place_of_window[windows] * (-1) ** part
            blocks_of_part = np.unique(places, return_inverse=True)[1]
            # Together are the blocks 0 and 1, 2 and 3, ... of this part, for held = 2.
            together = blocks_of_part // self.held
            shuffled = np.lexsort((generator.random(len(windows)), together))
            streams[numbers[part]] = windows[shuffled].tolist()

        # One window of each stream in turn. Their lengths differ by one at most.
        turns = itertools.zip_longest(*(streams[number] for number in sorted(streams)))
        return [window for turn in turns for window in turn if window is not None]
