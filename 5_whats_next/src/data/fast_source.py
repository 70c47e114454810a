"""Parts of a store's fields, many at a time.

Shapes: V variables, T months, H latitudes, W longitudes.
"""

import concurrent.futures.thread  # noqa: F401
import threading
import time
from collections.abc import Sequence
from itertools import product
from typing import Protocol, TypeVar

import numpy as np
import tensorstore as ts

Place = tuple[slice, slice, slice]  # months, latitudes, longitudes

# Set before Python waits for its threads at the end; what atexit knows comes after that. The import
# of concurrent.futures, which registers the waiting, has to come first: the last is called first.
_ending = threading.Event()
threading._register_atexit(_ending.set)  # type: ignore[attr-defined]


Result = TypeVar("Result", covariant=True)


class Waiting(Protocol[Result]):
    """Something that is on its way."""

    def result(self, timeout: float) -> Result:
        """Wait for it. Raises ValueError, or TimeoutError after some seconds."""


Reading = Waiting[list[np.ndarray]]  # parts of the fields, each (V, ...)


def wait_for(coming: Waiting[Result], patience: float) -> Result:
    """The result; TimeoutError after ``patience`` seconds, or when the program is about to end.

    A program that ends waits for its threads, so a thread must not wait for long then.
    """
    end = time.monotonic() + patience
    while True:
        try:
            return coming.result(timeout=min(1.0, patience))
        except TimeoutError:
            if time.monotonic() > end or _ending.is_set():
                raise


class Together:
    """A reading of several futures."""

    def __init__(self, futures: Sequence[ts.Future]) -> None:
        self.futures = futures

    def result(self, timeout: float) -> list[np.ndarray]:
        return [future.result(timeout=timeout) for future in self.futures]


class Source:
    """Where the parts come from.

    Args:
        arrays: one (T, H, W) for each variable, or one (V, T, H, W) for all of them.
        rows: which rows of the one array, in which order; None if there are several arrays.
    """

    def __init__(self, arrays: Sequence[ts.TensorStore], rows: Sequence[int] | None) -> None:
        self.arrays, self.rows = list(arrays), rows
        if rows is None:
            self.fields = ts.stack(self.arrays)
        else:
            whole = list(rows) == list(range(arrays[0].shape[0]))
            self.fields = arrays[0] if whole else arrays[0][list(rows)]
        self.driver = str(arrays[0].spec().to_json()["kvstore"]["driver"])

    def read(self, places: Sequence[Place]) -> Reading:
        """Ask for all parts at once; a chunk that several of them need is asked for once."""
        with ts.Batch() as batch:  # the requests leave when the block ends
            parts = [self.fields[(slice(None), *place)].read(batch=batch) for place in places]
        return Together(parts)

    def objects(self, places: Sequence[Place]) -> set[tuple[int, str]]:
        """What holds these parts: numbers of arrays, and the keys in them."""
        lead = () if self.rows is None else (slice(None),)
        return {
            (number, key)
            for place in places
            for number, array in enumerate(self.arrays)
            for key in object_keys(array, (*lead, *place))
        }


def key_value_store_of(array: ts.TensorStore) -> ts.KvStore:
    """Where its objects are."""
    assert array.kvstore  # Zarr has one, other drivers may not
    return array.kvstore


def object_keys(array: ts.TensorStore, place: tuple[slice, ...]) -> list[str]:
    """The keys of the objects that hold a part of an array, as Zarr v3 names them by default."""
    touched = []
    for part, size, length in zip(place, object_shape(array), array.shape, strict=True):
        first, end, _ = part.indices(length)
        touched.append(range(first // size, -(-end // size)))
    return ["/".join(["c", *map(str, chunk)]) for chunk in product(*touched)]


def object_shape(array: ts.TensorStore) -> tuple[int, ...]:
    """The shape of the values in an object, a chunk or a shard."""
    return tuple(size or 1 for size in array.chunk_layout.write_chunk.shape or ())
