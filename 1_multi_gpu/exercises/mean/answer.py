"""The loss of one rank.

Each rank calls ``loss`` for its own part of the batch, and then ``backward``; DDP averages the
gradients over the ranks. Each rank's mean is right. But one rank has open ocean and another one
coast, and the mean of their means is not the mean over all values. Return a loss that gives the
gradient that one process has with the whole batch. What if a rank has nothing but land, or all of
them?
"""

from collections.abc import Callable

from torch import Tensor


def loss(
    squared_error: Tensor,
    valid_count: Tensor,
    world_size: int,
    sum_over_ranks: Callable[..., list[Tensor]],
) -> Tensor:
    """What this rank calls ``backward`` on.

    ``squared_error`` is the sum over its valid values, and ``valid_count`` how many they are.
    ``sum_over_ranks(a, b)`` is [sum of all ranks' a, sum of all ranks' b], without gradients. It is
    a meeting, as in src/lightning_ranks.py: it waits until all ranks have come.
    """
    return squared_error / valid_count
