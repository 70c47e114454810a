"""Statistics of a field that does not fit into memory.

``mean_and_std`` reads the field block by block. NaN is land, some blocks have much of it, and some
have nothing else. The values are temperatures near 300 K that differ by a tenth of a degree. Both
results are wrong, for two reasons. Give mean and standard deviation of all valid values, read each
block once, and hold no more than a few at a time.
"""

from collections.abc import Callable

import numpy as np


def mean_and_std(read: Callable[[int], np.ndarray], num_blocks: int) -> tuple[float, float]:
    """Over the blocks ``read(0)`` to ``read(num_blocks - 1)``, float32 arrays (T, H, W)."""
    means, squares = [], []
    for number in range(num_blocks):
        values = read(number)
        valid = values[~np.isnan(values)]
        if valid.size:
            means.append(np.mean(valid))
            squares.append(np.mean(valid**2))
    mean = np.mean(means)
    variance = np.mean(squares) - mean**2
    return float(mean), float(np.sqrt(variance))
