"""A generator of its own for each (seed, epoch), and a slice that begins where the run stopped."""

from collections.abc import Iterator

import numpy as np


def batches(
    num_samples: int, batch_size: int, seed: int, epoch: int, done: int = 0
) -> Iterator[list[int]]:
    """Batches of sample numbers, whole ones only; ``done`` of them have been trained on."""
    order = np.random.default_rng([seed, epoch]).permutation(num_samples).tolist()
    for step in range(done, num_samples // batch_size):
        yield order[step * batch_size : (step + 1) * batch_size]
