"""Is each chunk read once, is the order still shuffled, and is it a function of (seed, epoch)?"""

import random
from collections import OrderedDict
from types import ModuleType

import numpy as np
import torch

CHUNKS, PER_CHUNK, HELD, BATCH = 42, 64, 4, 8


def in_memory(chunks: np.ndarray) -> int:
    """The most chunks that have begun and not ended, for the chunk of each sample in turn."""
    numbers = np.unique(chunks)
    first = np.array([np.flatnonzero(chunks == number)[0] for number in numbers])
    last = np.array([np.flatnonzero(chunks == number)[-1] for number in numbers])
    return max(int(((first <= at) & (last >= at)).sum()) for at in first)


def reads(chunks: np.ndarray, held: int) -> int:
    """How often a chunk is read, if the one that was touched longest ago goes."""
    memory: OrderedDict[int, None] = OrderedDict()
    count = 0
    for chunk in chunks.tolist():
        count += chunk not in memory
        memory[chunk] = None
        memory.move_to_end(chunk)
        if len(memory) > held:
            memory.popitem(last=False)
    return count


def check_once(found: np.ndarray, num_chunks: int, per_chunk: int, held: int) -> None:
    """Each sample once, each chunk once."""
    assert found.ndim == 1, f"the order has the shape {found.shape}, and is no list of numbers"
    total = num_chunks * per_chunk
    strange = np.setdiff1d(found, np.arange(total))
    assert not len(strange), f"sample {strange[0]} comes, and does not exist"
    different = len(np.unique(found))
    assert different == len(found), f"{len(found) - different} times a sample comes twice"
    assert different == total, f"{different} of {total} samples come"
    chunks = found // per_chunk
    most = in_memory(chunks)
    assert most <= held, (
        f"{most} chunks are in memory at the same time; with room for {held}, {num_chunks} chunks "
        f"are read {reads(chunks, held):,} times"
    )


def check_shuffled(found: np.ndarray, other: np.ndarray) -> None:
    """Chunks, samples, and batches; ``other`` is the next epoch."""
    firsts = [list(dict.fromkeys((epoch // PER_CHUNK).tolist())) for epoch in (found, other)]
    groups = [[frozenset(order[n : n + HELD]) for n in range(0, CHUNKS, HELD)] for order in firsts]
    stored = [frozenset(range(n, min(n + HELD, CHUNKS))) for n in range(0, CHUNKS, HELD)]
    assert groups[0] != stored, (
        "the chunks come in the order in which they are stored: the model sees the months one "
        "after the other, and forgets the first ones"
    )
    assert groups[0] != groups[1], "the chunks come in the same order in epochs 0 and 1"
    assert set(groups[0]) != set(groups[1]), (
        f"the same {HELD} chunks are in memory together in epochs 0 and 1: their samples always "
        "meet, and others never"
    )
    different = [len(np.unique(batch)) for batch in (found // PER_CHUNK).reshape(-1, BATCH)]
    mean = float(np.mean(different))
    assert mean >= HELD - 1, (
        f"{mean:.1f} different chunks in a batch of {BATCH}, with {HELD} in memory: the batches "
        "that follow one another are alike, and the model forgets the others"
    )
    inside = [tuple(found[found // PER_CHUNK == n] % PER_CHUNK) for n in range(CHUNKS)]
    in_order = sum(samples == tuple(sorted(samples)) for samples in inside)
    assert not in_order, (
        f"the samples of {in_order} of {CHUNKS} chunks come in the order in which they are stored"
    )
    alike = CHUNKS - len(set(inside))
    assert not alike, f"{alike} of {CHUNKS} chunks are cut up in the same order as another one"


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""

    def order(seed: int, epoch: int, sizes: tuple[int, int, int]) -> np.ndarray:
        return np.asarray(list(answer.order(seed, epoch, *sizes)))

    sizes = (CHUNKS, PER_CHUNK, HELD)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = order(0, 0, sizes)
    check_once(first, *sizes)
    second = order(0, 1, sizes)
    assert not np.array_equal(second, first), "epochs 0 and 1 have the same order"
    assert np.array_equal(order(0, 0, sizes), first), (
        "epoch 0 has another order the second time: a resumed run, or another rank, would go "
        "through other samples"
    )
    check_shuffled(first, second)
    other = order(1, 0, sizes)
    assert not np.array_equal(other, first), "seeds 0 and 1 have the same order"
    assert not np.array_equal(other, second), (
        "seed 1, epoch 0 is seed 0, epoch 1: a sum mixes them up"
    )
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert states[0].equal(after[0]), "PyTorch's generator has moved on: who draws next is changed"
    assert states[1:] == after[1:], "a generator has moved on that others draw from, too"
    for sizes in ((5, 16, 1), (3, 16, 8), (1, 16, 4)):
        check_once(order(0, 0, sizes), *sizes)
