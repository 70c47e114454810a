"""Its own sum over everybody's count, times world_size: DDP's average then leaves the sum alone."""

from collections.abc import Callable

from torch import Tensor


def loss(
    squared_error: Tensor,
    valid_count: Tensor,
    world_size: int,
    sum_over_ranks: Callable[..., list[Tensor]],
) -> Tensor:
    """What this rank calls ``backward`` on."""
    [count] = sum_over_ranks(valid_count)  # first: a rank of land has to come to the meeting too
    return squared_error * world_size / count.clamp(min=1)
