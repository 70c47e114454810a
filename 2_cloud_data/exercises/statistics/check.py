"""Are the statistics those of the whole field, with one read of each block and little memory?"""

import tracemalloc
import warnings
from collections import Counter
from types import ModuleType

import numpy as np

NUM_BLOCKS = 60
TOLERANCE = 1e-3  # standard deviations


def make_blocks() -> list[np.ndarray]:
    """From south to north: all land, then sea, then warmer sea with more and more land."""
    generator = np.random.default_rng(0)
    blocks = []
    for number in range(NUM_BLOCKS):
        rows = 32 if number < NUM_BLOCKS - 1 else 20  # at the edge of the field
        north = number / NUM_BLOCKS
        block = 300 + 0.1 * north + generator.normal(0, 0.1, (12, rows, 64))
        block[:, generator.random((rows, 64)) < 0.9 * north] = np.nan
        blocks.append(block.astype(np.float32))
    for number in (0, 41):
        blocks[number][:] = np.nan
    return blocks


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    blocks = make_blocks()
    whole = np.concatenate([block.ravel() for block in blocks]).astype(np.float64)
    right_mean, right_std = np.nanmean(whole), np.nanstd(whole)
    reads: Counter[int] = Counter()
    held = 0

    def read(number: int) -> np.ndarray:
        nonlocal held
        reads[number] += 1
        held = max(held, tracemalloc.get_traced_memory()[0])
        return blocks[number].copy()

    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        # Once before it counts: what is imported now is not the field's memory.
        answer.mean_and_std(lambda number: blocks[number].copy(), 3)
        tracemalloc.start()
        try:
            mean, std = answer.mean_and_std(read, NUM_BLOCKS)
        finally:
            tracemalloc.stop()
    twice = [number for number, times in reads.items() if times > 1]
    assert not twice, (
        f"{reads.total()} reads of {NUM_BLOCKS} blocks: block {twice[0]} comes {reads[twice[0]]} "
        "times over the network"
    )
    assert len(reads) == NUM_BLOCKS, f"only {len(reads)} of {NUM_BLOCKS} blocks are read"
    size = sum(block.nbytes for block in blocks)
    assert held < size / 3, (
        f"{held / 1e6:.1f} of the field's {size / 1e6:.1f} MB are held while another block "
        "is read: the memory grows with the field"
    )
    for what, value in {"mean": mean, "standard deviation": std}.items():
        assert np.isfinite(value), (
            f"the {what} is {value}, and with it every normalised value, the loss and the weights"
        )
    off = abs(mean - right_mean) / right_std
    assert off < TOLERANCE, (
        f"the mean is {mean:.3f}, and not {right_mean:.3f}: normalised values would be "
        f"wrong by {off:.2g}"
    )
    ratio = std / right_std
    assert abs(ratio - 1) < TOLERANCE, (
        f"the standard deviation is {std:.4f}, and not {right_std:.4f}: normalised, the "
        f"field would have {1 / ratio if ratio else np.inf:.3f} instead of 1"
    )
