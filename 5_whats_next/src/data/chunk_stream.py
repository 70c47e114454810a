"""Windows in an order that respects chunks: each block of the store is read once, and cut up.

This changes the order of the samples, and so the curve: FastDataset's order is random, this one is
random among the windows that are in memory. What that costs is measured by shuffle_quality.py.

An epoch is still every window once, a function of (seed, epoch) alone, and it is the same for one
process and for several. It comes about in four steps:

1. The windows belong to blocks: to the one in which their first element lies.
2. The blocks are shuffled and dealt to ``streams``, like cards to players.
3. Each stream goes through its blocks with a shuffle buffer of ``buffer`` blocks.
4. The streams take turns: sample j of a batch comes from stream j modulo ``streams``. With R ranks
   and R a divisor of ``streams``, each rank gets whole streams, and no block is read by two ranks.

Shapes: V variables, T months, H latitudes, W longitudes.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.data.cloud_errors import CloudError
from src.data.fast_dataset import FastDataset
from src.data.fast_source import Place, Reading
from src.data.pytorch_dataset import Split
from src.data.sampler import epoch_order
from src.data.statistics import normalise

Block = tuple[int, int, int]  # its number along months, latitudes and longitudes
Step = tuple[int, int, int]  # the number of a window's first element in ``steps``


class ChunkStream(FastDataset):
    """Windows of a Zarr store, cut from blocks that are read whole.

    Memory, in its own order: streams * (buffer + 2) blocks, and those of the batches that are read
    ahead. A block is ``block`` and a window less one along each axis.

    Args:
        split: which months the windows come from.
        block: months, latitudes and longitudes in which the windows of a block begin; 0: all.
        buffer: blocks that a stream shuffles among; more of them are closer to a random order.
        streams: how many blocks are cut up side by side; a multiple of the number of ranks.
        repeat_augmentation: how often each window comes, one time after the other, each time with
            another mask (Hoffer et al. 2020; for masked autoencoders Feichtenhofer et al. 2022).
        settings: as for FastDataset.
    """

    def __init__(
        self,
        split: Split,
        block: tuple[int, int, int] = (1, 0, 0),
        buffer: int = 4,
        streams: int = 4,
        repeat_augmentation: int = 1,
        **settings: Any,
    ) -> None:
        if min(block) < 0 or min(buffer, streams, repeat_augmentation) < 1:
            raise CloudError(
                f"data.dataset: block {list(block)}, buffer {buffer}, streams {streams}, "
                f"repeat_augmentation {repeat_augmentation}; allowed: from 0, and from 1"
            )
        self.buffer, self.streams = buffer, streams
        self.repeats = repeat_augmentation if split == "train" else 1
        super().__init__(split, **settings)
        # Along each axis: which block a step belongs to, and where blocks begin and end.
        self.numbers: list[list[int]] = []
        self.extents: list[dict[int, tuple[int, int]]] = []
        for steps, size, window in zip(self.steps, block, self.window, strict=True):
            numbers = [(step - steps[0]) // (size or steps[-1] + 1) for step in steps]
            begin = dict(zip(reversed(numbers), reversed(steps), strict=True))
            end = dict(zip(numbers, steps, strict=True))
            self.numbers.append(numbers)
            self.extents.append({n: (begin[n], end[n] + window) for n in begin})
        self._blocks: OrderedDict[Block, Reading | np.ndarray] = OrderedDict()
        self._announced: dict[tuple[int, ...], set[Block]] = {}  # batches to come, and their blocks

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_blocks": OrderedDict(), "_announced": {}}

    def __len__(self) -> int:
        return super().__len__() * self.repeats

    def slices(self, index: int, origin: Sequence[int] = (0, 0, 0)) -> Place:
        return super().slices(index % super().__len__(), origin)

    def epoch_order(self, seed: int, epoch: int) -> list[int]:
        """The permutation of an epoch; see the four steps above."""
        shape = [numbers[-1] + 1 for numbers in self.numbers]
        blocks = np.ravel_multi_index(np.ix_(*self.numbers), shape).ravel()  # (windows,)
        turn = np.empty(np.prod(shape), np.int64)
        turn[epoch_order(len(turn), seed, epoch)] = np.arange(len(turn))
        place, delay = (  # (windows,) two numbers from 0 to 1 for each
            np.asarray(epoch_order(len(blocks), seed, 2 * epoch + half)) / len(blocks)
            for half in (0, 1)
        )
        size = self.buffer * len(blocks) / len(turn)  # of the shuffle buffer, in windows
        streams = []
        for stream in range(self.streams):
            own = np.flatnonzero(turn[blocks] % self.streams == stream)
            own = own[np.lexsort((place[own], turn[blocks[own]]))]  # block by block
            # A shuffle buffer without simulating it: a window leaves it up to ``size`` windows
            # after it came. At first it is half full, as it would be after a long time.
            came = np.arange(len(own))
            stay = np.minimum(size, np.sqrt(2 * came * size))
            left = np.maximum(0, came - size / 2) + stay * delay[own]
            streams.append(own[np.argsort(left, kind="stable")])
        copies = [(own[:, None] + len(blocks) * np.arange(self.repeats)).ravel() for own in streams]
        shortest = min(map(len, copies))
        together = np.stack([own[:shortest] for own in copies], axis=1).ravel()
        return [*together.tolist(), *np.concatenate([own[shortest:] for own in copies]).tolist()]

    def places_of(self, indices: Sequence[int]) -> list[Step]:
        """Which step each window is along each axis."""
        steps = np.unravel_index(
            np.asarray(indices) % super().__len__(), [len(steps) for steps in self.steps]
        )
        return list(zip(*(axis.tolist() for axis in steps), strict=True))

    def block_at(self, step: Step) -> Block:
        """The block of a window."""
        t, y, x = step
        return self.numbers[0][t], self.numbers[1][y], self.numbers[2][x]

    def covered(self, block: Block) -> Place:
        """What the windows of a block cover; it may go on beyond the edge of the grid."""
        ends = (extents[number] for extents, number in zip(self.extents, block, strict=True))
        parts = zip(ends, self.opened.origin, strict=True)
        t, y, x = (slice(origin + begin, origin + end) for (begin, end), origin in parts)
        return t, y, x

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start to read the blocks of a batch that will be asked for."""
        blocks = dict.fromkeys(map(self.block_at, self.places_of(indices)))
        self._announced[tuple(indices)] = set(blocks)
        for block in blocks:
            if block not in self._blocks:
                self._blocks[block] = self.read(block)
            self._blocks.move_to_end(block)
        # The one that was touched longest ago goes, but for those that are about to be cut up.
        needed = set().union(*self._announced.values())
        spare = [block for block in self._blocks if block not in needed]
        for block in spare[: max(0, len(self._blocks) - self.capacity(len(indices)))]:
            del self._blocks[block]

    def forget(self) -> None:
        self._announced.clear()

    def capacity(self, batch_size: int) -> int:
        """How many blocks are kept: those of the shuffle buffers and of the batches ahead."""
        windows = len(self) / math.prod(map(len, self.extents))
        ahead = (self.batches_ahead + 1) * batch_size / windows
        return self.streams * (self.buffer + 2) + math.ceil(ahead)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        if tuple(indices) not in self._announced:
            self.prefetch(indices)
        try:
            windows = [torch.from_numpy(self.cut(step)) for step in self.places_of(indices)]
        finally:
            del self._announced[tuple(indices)]
        return list(zip(windows, indices, strict=True))

    def cut(self, step: Step) -> np.ndarray:
        """A window (V, T, H, W), a part of its block; who makes a batch of windows copies it."""
        block = self.block_at(step)
        axes = zip(self.steps, step, self.extents, block, strict=True)
        t, y, x = (steps[i] - extents[number][0] for steps, i, extents, number in axes)
        months, height, width = self.window
        return self.values(block)[:, t : t + months, y : y + height, x : x + width]

    def read(self, block: Block) -> Reading:
        """Start to read a block."""
        return self.source.read([place for _, place in self.parts(self.covered(block))])

    def values(self, block: Block) -> np.ndarray:
        """The normalised values (V, ...) of a block that is there, or on its way."""
        found = self._blocks.get(block)
        if isinstance(found, np.ndarray):
            return found
        self._blocks.pop(block, None)  # if this fails, the next try reads it anew
        parts = self.result_of(self.read(block) if found is None else found)
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        self._blocks[block] = values = normalise(whole, self.mean, self.std)
        return values
