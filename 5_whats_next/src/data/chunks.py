"""Which chunks of a store are missing or damaged."""

import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import zarr

from src.data.checked_store import CheckedStore, ChunkError

# Names of arrays, and which part of each; None means all of it.
Parts = Iterable[tuple[str, Sequence[slice] | None]]
DECODING_ERRORS = (RuntimeError, ValueError, EOFError, zlib.error, gzip.BadGzipFile)


def check_chunks(store: CheckedStore, parts: Parts) -> None:
    """Read these parts, and keep nothing. Raises ChunkError, which names the bad chunks."""
    bad = {key for name, region in parts for key in bad_chunks(store, name, region)}
    if bad:
        advice = (
            "if they are statistics, run build_store.py statistics again; if they are fields, "
            "build the store again at another address"
        )
        raise ChunkError(f"{store.url}: damaged chunks {sorted(bad)}; {advice}")


def bad_chunks(
    store: CheckedStore, name: str, region: Sequence[slice] | None = None
) -> Iterator[str]:
    """The keys of the objects with missing or damaged chunks of an array, in their order."""
    try:
        array = zarr.open_array(store, path=name, mode="r")
    except FileNotFoundError:
        yield f"{name}/zarr.json"
        return
    if array.shards:
        store.add_shards(name)
    region = region or [slice(0, size) for size in array.shape]
    numbers = []  # of the objects along each axis
    sizes = array.shards or array.chunks
    for part, length, size in zip(region, array.shape, sizes, strict=True):
        # A window may go on beyond the last column, with the first ones.
        places = np.arange(part.start, part.stop) % length
        numbers.append(np.unique(places // size).tolist())

    def is_bad(place: tuple[int, ...]) -> bool:
        try:
            array.blocks[place]
        # Not for a store that does not answer: what is intact would be built again.
        except (ChunkError, *DECODING_ERRORS):
            return True
        return False

    left = itertools.product(*numbers)
    # A shard is read whole.
    with ThreadPoolExecutor(4 if array.shards else 32) as threads:
        # Some at a time: map() would make a list of all chunks of the store.
        while batch := list(itertools.islice(left, 1024)):
            for place, bad in zip(batch, threads.map(is_bad, batch), strict=True):
                if bad:
                    yield f"{name}/{array.metadata.encode_chunk_key(place)}"
