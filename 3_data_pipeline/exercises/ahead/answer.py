"""A loader that runs ahead.

``ahead`` gives ``load(batch)`` of each batch, and threads load while the model computes. This one
loads as fast as it can: if the model is slow, a whole epoch comes to lie in memory. Let it go ``n``
batches ahead. While the model uses a batch, the next ``n`` are loaded, all at the same time, and
none after them. They come in order. If one cannot be loaded, its error comes when it is its turn.
If the model stops early, no thread stays behind.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def ahead(load: Callable[[list[int]], Any], batches: Iterable[list[int]], n: int) -> Iterator[Any]:
    """What ``load`` makes of each batch, loaded up to ``n`` batches early, in ``n`` threads."""
    pool = ThreadPoolExecutor(n)
    for future in [pool.submit(load, batch) for batch in batches]:
        yield future.result()
