"""How many chunks and bytes does a window cost, for chunks of different sizes?

uv run python chunk_size.py                                       a 64 x 64 window of bytes
uv run python chunk_size.py --window "[12,16,32]" --itemsize 4    float32, three axes
"""

import math

import pandas as pd
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure

from src.run.config import CHAPTER, HelpFormatter


def cost(window: tuple[int, ...], factor: float, itemsize: int) -> dict[str, object]:
    """Chunks and bytes of a window, at least, at most and on average; a chunk is factor windows."""
    chunk = [max(1, round(size * factor)) for size in window]
    minimal = 1
    maximal = 1
    mean = 1.0
    for w, c in zip(window, chunk, strict=True):
        # Along an axis, a window of w values touches at least w / c chunks of c values, rounded up.
        # If it starts at the last value of a chunk, the other w - 1 need (w - 1) / c more, rounded
        # up. The mean is that over all starts.
        minimal *= math.ceil(w / c)
        maximal *= math.ceil((w - 1) / c) + 1
        mean *= (w - 1) / c + 1
    size = math.prod(chunk) * itemsize
    return {
        "chunk_size": "x".join(map(str, chunk)),
        "minimal_chunks": minimal,
        "maximal_chunks": maximal,
        "minimal_bytes": minimal * size,
        "maximal_bytes": maximal * size,
        "mean_chunks": mean,
        "mean_bytes": mean * size,
    }


def draw(table: pd.DataFrame) -> Figure:
    """Chunks and bytes against the size of a chunk: the mean, and the range around it."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, unit in zip(axes, ("chunks", "bytes"), strict=True):
        size = table["chunk_size"]
        low = table[f"minimal_{unit}"]
        high = table[f"maximal_{unit}"]
        label = "from the best to the worst start"
        axis.fill_between(size, low, high, alpha=0.2, label=label)
        axis.plot(size, table[f"mean_{unit}"], "o-", label="mean of all starts")
        axis.set(yscale="log", xlabel="chunk size", ylabel=f"{unit} for a window")
        axis.tick_params(axis="x", rotation=45)
        axis.legend()
    return figure


def main(window: tuple[PositiveInt, ...] = (64, 64), itemsize: PositiveInt = 1) -> None:
    """Print the table, and draw it.

    Args:
        window: elements along each axis.
        itemsize: bytes of an element.
    """
    rows = [cost(window, 2.0**power, itemsize) for power in range(-3, 5)]
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format="{:.1f}".format))
    folder = CHAPTER / "output" / "chunk_size"
    folder.mkdir(parents=True, exist_ok=True)
    draw(table).savefig(folder / "chunk_size.png", dpi=110)
    print("look at output/chunk_size: chunk_size.png")


if __name__ == "__main__":
    auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
