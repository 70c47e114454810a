"""Which chunks does a window touch?

``touched`` names the chunks that a window needs. A window lies inside the field in time and
latitude, but the globe is round: after the last longitude comes the first one. This version asks
for chunks that hold nothing of the window, and at the edge of the globe for some that do not exist.
Name each chunk that holds a part of the window, no other, and each once.
"""

from itertools import product

Shape = tuple[int, int, int]  # time, lat, lon


def touched(start: Shape, window: Shape, chunk: Shape, shape: Shape) -> list[str]:
    """The keys of the chunks, such as c/0/0/2, of the window that begins at ``start``."""
    axes = [
        range(first // size, (first + length) // size + 1)
        for first, length, size in zip(start, window, chunk, strict=True)
    ]
    return [f"c/{t}/{y}/{x}" for t, y, x in product(*axes)]
