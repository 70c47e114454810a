"""Each rank's share of a step.

``share`` permutes the epoch, cuts it into one piece for each rank, and fills up the last piece from
the start. Each rank then goes through its own piece. So two ranks train on other batches than one
process does, and some samples come twice. Make the ranks together have exactly the batch that one
process has in this step: in any step, for any number of ranks, in equal parts.
"""

from src.data.sampler import epoch_order


def share(
    num_samples: int, seed: int, batch_size: int, rank: int, world_size: int, step: int
) -> list[int]:
    """The samples of this rank in a step; steps are counted through all epochs.

    ``batch_size`` is the global one, a multiple of ``world_size``. What is left over at the end of
    an epoch is dropped, as in chapter 0.
    """
    epoch, number = divmod(step, num_samples // batch_size)
    order = epoch_order(num_samples, seed, epoch)
    length = -(-num_samples // world_size)  # rounded up
    order += order[: length * world_size - num_samples]
    piece = order[rank * length : (rank + 1) * length]
    size = batch_size // world_size
    return piece[number * size : (number + 1) * size]
