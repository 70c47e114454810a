"""Are the chunks of a window all named, no other, and each once?"""

from collections.abc import Iterable
from itertools import product
from types import ModuleType

import numpy as np

Shape = tuple[int, int, int]  # time, lat, lon
SHAPE = (54, 18, 432)
CASES = [  # start, window, chunk
    ((0, 0, 0), (12, 6, 48), (12, 6, 48)),  # one chunk, all of it
    ((5, 1, 40), (12, 16, 32), (12, 6, 48)),  # begins and ends inside chunks
    ((42, 2, 320), (12, 16, 32), (12, 6, 50)),  # up to the last month and latitude
    ((0, 0, 400), (12, 16, 32), (12, 6, 48)),  # up to the edge of the globe
    ((0, 0, 420), (12, 16, 32), (12, 6, 48)),  # across it
    ((0, 0, 410), (12, 16, 32), (12, 6, 50)),  # the same, and the last chunk is not full
    ((0, 0, 431), (1, 1, 1), (12, 6, 50)),  # the last longitude alone
    ((0, 0, 420), (12, 16, 32), (12, 18, 432)),  # both parts in the same chunk
    ((0, 0, 30), (1, 1, 430), (12, 6, 50)),  # nearly round: it ends in the chunk where it began
    ((0, 0, 7), (12, 16, 432), (12, 6, 48)),  # round
]


def random_cases() -> list[tuple[Shape, ...]]:
    """Windows of any size and place, in chunks of any size."""
    generator = np.random.default_rng(0)
    cases = []
    for _ in range(100):
        window = generator.integers(1, [12, 9, SHAPE[2]], endpoint=True)
        last = np.array(SHAPE) - window
        start = generator.integers(0, [last[0], last[1], SHAPE[2] - 1], endpoint=True)
        chunk = generator.integers(1, [20, 20, 100])
        cases.append(tuple(tuple(numbers.tolist()) for numbers in (start, window, chunk)))
    return cases


def keys(*axes: Iterable[int]) -> set[str]:
    return {f"c/{t}/{y}/{x}" for t, y, x in product(*axes)}


def label(shape: Shape) -> str:
    return "x".join(map(str, shape))


def some(names: set[str]) -> str:
    """The first name, and how many there are."""
    first, *others = sorted(map(str, names))
    return f"{first} (and {len(others)} more)" if others else first


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    for start, window, chunk in [*CASES, *random_cases()]:
        names = list(answer.touched(start, window, chunk, SHAPE))
        found = set(names)
        # Along each axis the chunk of every position; beyond the edge the first ones come again.
        chunks = [np.arange(end) // size for end, size in zip(SHAPE, chunk, strict=True)]
        exist = keys(*(set(line.tolist()) for line in chunks))
        places = [range(first, first + n) for first, n in zip(start, window, strict=True)]
        taken = (line.take(place, mode="wrap") for line, place in zip(chunks, places, strict=True))
        wanted = keys(*(set(line.tolist()) for line in taken))
        what = f"{label(window)} at {start}, chunks of {label(chunk)}"
        assert found <= exist, (
            f"{what}: {some(found - exist)} does not exist. For a chunk that is missing zarr hands "
            "out NaN, and a training takes it for land"
        )
        assert found >= wanted, (
            f"{what}: {some(wanted - found)} is not named, so a part of the window has no values"
        )
        assert found <= wanted, (
            f"{what}: {some(found - wanted)} holds nothing of it; {len(found)} requests instead of "
            f"{len(wanted)}"
        )
        assert len(names) == len(found), (
            f"{what}: {max(names, key=names.count)} is named twice, and what is named twice is "
            "read twice"
        )
