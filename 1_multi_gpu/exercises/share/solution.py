"""First the batch of a single process, and then every world_size-th sample of it."""

from src.data.sampler import epoch_order


def share(
    num_samples: int, seed: int, batch_size: int, rank: int, world_size: int, step: int
) -> list[int]:
    """The samples of this rank in a step; steps are counted through all epochs."""
    epoch, number = divmod(step, num_samples // batch_size)
    order = epoch_order(num_samples, seed, epoch)  # the same on all ranks
    batch = order[number * batch_size : (number + 1) * batch_size]
    return batch[rank::world_size]
