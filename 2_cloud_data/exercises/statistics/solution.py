"""Number, mean and sum of squared differences: two sets' give those of both, and stay small."""

import math
from collections.abc import Callable

import numpy as np


def mean_and_std(read: Callable[[int], np.ndarray], num_blocks: int) -> tuple[float, float]:
    """Over the blocks ``read(0)`` to ``read(num_blocks - 1)``, float32 arrays (T, H, W)."""
    count, mean, squares = 0, 0.0, 0.0
    for number in range(num_blocks):
        values = read(number)
        valid = values[~np.isnan(values)].astype(np.float64)
        if not valid.size:
            continue
        # Chan, Golub and LeVeque 1983, as in src/data/cloud_statistics.py.
        total = count + valid.size
        delta = valid.mean() - mean
        squares += np.square(valid - valid.mean()).sum() + delta**2 * count * valid.size / total
        mean += delta * valid.size / total
        count = total
    return mean, math.sqrt(squares / count)
