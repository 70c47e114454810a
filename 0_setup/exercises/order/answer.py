"""An order that can begin anywhere.

``batches`` shuffles the samples of an epoch. A run that is resumed after ``done`` steps of an epoch
has to go on with the batches that are left, without drawing the earlier epochs again to get there.
Make the order a function of (seed, epoch), and let it begin after ``done`` steps.
"""

import random
from collections.abc import Iterator

GENERATOR = random.Random(0)


def batches(
    num_samples: int, batch_size: int, seed: int, epoch: int, done: int = 0
) -> Iterator[list[int]]:
    """Batches of sample numbers, whole ones only; ``done`` of them have been trained on."""
    order = list(range(num_samples))
    GENERATOR.shuffle(order)
    for step in range(num_samples // batch_size):
        yield order[step * batch_size : (step + 1) * batch_size]
