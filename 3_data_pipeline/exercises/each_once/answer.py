"""An order that reads each chunk once.

Sample i lies in chunk i // per_chunk. A chunk is read when one of its samples is needed, and stays
in memory until the last of them has come, if no more than ``held`` chunks are there at a time. The
order below is as random as can be, and reads chunks again and again. Repair it: each chunk is read
once, and a batch still mixes samples of ``held`` chunks. It stays a function of (seed, epoch).
"""

from src.data.sampler import epoch_order


def order(seed: int, epoch: int, num_chunks: int, per_chunk: int, held: int) -> list[int]:
    """The permutation of an epoch's num_chunks * per_chunk samples."""
    return epoch_order(num_chunks * per_chunk, seed, epoch)
