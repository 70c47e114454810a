"""The chunks are shuffled, and the samples of each group of ``held`` chunks, all together."""

import numpy as np


def order(seed: int, epoch: int, num_chunks: int, per_chunk: int, held: int) -> list[int]:
    """The permutation of an epoch's num_chunks * per_chunk samples."""
    chance = np.random.default_rng([seed, epoch])
    chunks = chance.permutation(num_chunks)
    samples: list[int] = []
    for first in range(0, num_chunks, held):
        group = chunks[first : first + held, None] * per_chunk + np.arange(per_chunk)
        samples += chance.permutation(group.ravel()).tolist()
    return samples
