"""Which chunks of a store are missing or damaged."""

import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import zarr

from src.data.checked_store import CheckedStore, ChunkError
from src.run.errors import UserError

# Names of arrays, and which part of each; None means all of it.
Parts = Iterable[tuple[str, Sequence[slice] | None]]
DECODING_ERRORS = (RuntimeError, ValueError, EOFError, zlib.error, gzip.BadGzipFile)


def check_chunks(store: CheckedStore, parts: Parts) -> None:
    """Read these parts, and keep nothing. Raises ChunkError, which names the bad chunks."""
    bad = {key for name, region in parts for key in bad_chunks(store, name, region)}
    if bad:
        advice = "build_store.py check --url URL --repair true makes them anew"
        raise ChunkError(f"{store.url}: damaged chunks {sorted(bad)}; {advice}")


def bad_chunks(
    store: CheckedStore, name: str, region: Sequence[slice] | None = None
) -> Iterator[str]:
    """The keys of an array's chunks that are missing or damaged, in their order."""
    try:
        array = zarr.open_array(store, path=name, mode="r")
    except FileNotFoundError:
        yield f"{name}/zarr.json"
        return
    if array.shards:
        raise UserError(f"{store.url} has shards; chapter 3 reads them")
    region = region or [slice(0, size) for size in array.shape]
    numbers = []  # of the chunks along each axis
    for part, size, chunk in zip(region, array.shape, array.chunks, strict=True):
        # A window may go on beyond the last column, with the first ones.
        places = np.arange(part.start, part.stop) % size
        numbers.append(np.unique(places // chunk).tolist())

    def is_bad(place: tuple[int, ...]) -> bool:
        try:
            array.blocks[place]
        # Not for a store that does not answer: what is intact would be built again.
        except (ChunkError, *DECODING_ERRORS):
            return True
        return False

    left = itertools.product(*numbers)
    with ThreadPoolExecutor(32) as threads:
        # Some at a time: map() would make a list of all chunks of the store.
        while batch := list(itertools.islice(left, 1024)):
            for place, bad in zip(batch, threads.map(is_bad, batch), strict=True):
                if bad:
                    yield f"{name}/{array.metadata.encode_chunk_key(place)}"
