"""A queue of futures: one goes in on the right, and if more than n wait, one comes out left."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def ahead(load: Callable[[list[int]], Any], batches: Iterable[list[int]], n: int) -> Iterator[Any]:
    """What ``load`` makes of each batch, loaded up to ``n`` batches early, in ``n`` threads."""
    coming: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(n) as pool:  # its threads end however this is left
        for batch in batches:
            coming.append(pool.submit(load, batch))
            if len(coming) > n:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
