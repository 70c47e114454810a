"""First round the globe, then divide: the chunks are those that the window's positions lie in."""

from itertools import product

Shape = tuple[int, int, int]  # time, lat, lon


def touched(start: Shape, window: Shape, chunk: Shape, shape: Shape) -> list[str]:
    """The keys of the chunks, such as c/0/0/2, of the window that begins at ``start``."""
    axes = []
    for first, length, size, end in zip(start, window, chunk, shape, strict=True):
        positions = range(first, first + length)
        axes.append(sorted({position % end // size for position in positions}))
    return [f"c/{t}/{y}/{x}" for t, y, x in product(*axes)]
