"""What chunks cost a window, as tables and as a picture.

A row is what one chunk shape costs: chunk_size, and for minimal, maximal, random and aligned the
numbers of chunks, bytes and milliseconds, such as random_bytes.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, NullFormatter

from src.errors import UserError

Row = dict[str, str | float]

KINDS = ("minimal", "maximal", "random", "aligned")
EXTREMES = ("minimal_chunks", "maximal_chunks", "minimal_bytes", "maximal_bytes")
DIGITS = {"chunks": 2, "bytes": 0, "ms": 1}  # of means
MEANS = tuple(f"{kind}_{unit}" for unit in DIGITS for kind in KINDS[2:])
PANELS = {"chunks": ("chunks", ""), "bytes": ("bytes", "B"), "ms": ("modelled time", "s")}
FORMATS = (".png", ".svg", ".pdf")


def label(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def picture_file(text: str) -> Path:
    """A path that can be drawn to; raises UserError if not."""
    path = Path(text)
    if path.suffix not in FORMATS:
        raise UserError(f"--plot: {text} is no picture; allowed: {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UserError(f"--plot: {path.parent} does not exist; allowed: a folder that does")
    return path


def cell(row: Row, column: str) -> str:
    """A value as it stands in a table."""
    value = row[column]
    if not isinstance(value, float):
        return str(value)
    return f"{value:.{DIGITS[column.rpartition('_')[2]]}f}"


def print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """One line for each row, aligned on the right."""
    columns = ("chunk_size", *columns)
    lines = [columns, *([cell(row, name) for name in columns] for row in rows)]
    widths = [max(map(len, words)) for words in zip(*lines, strict=True)]
    for line in lines:
        print(" ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)))


def plot_costs(rows: Sequence[Row], title: str, path: Path) -> None:
    """A panel each for chunks, bytes and time, on logarithmic axes.

    Chunk shapes are evenly spaced in the order of the rows, because there is no other order for
    shapes of several axes. Where each is twice the one before, that is a logarithmic axis, too.
    """
    figure, panels = plt.subplots(1, len(PANELS), figsize=(13, 4.8), layout="constrained")
    for axis, (unit, (name, symbol)) in zip(panels, PANELS.items(), strict=True):
        draw_panel(axis, rows, unit)
        axis.set(title=f"{name} per window", xlabel="chunk size")
        axis.yaxis.set_major_formatter(EngFormatter(symbol))
        axis.yaxis.set_minor_formatter(NullFormatter())
    panels[0].legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_panel(axis: Axes, rows: Sequence[Row], unit: str) -> None:
    """A band in which all windows lie, and the means as lines."""
    place = range(len(rows))
    scale = 1e-3 if unit == "ms" else 1  # the axis writes its own milli
    curves = {kind: [scale * float(row[f"{kind}_{unit}"]) for row in rows] for kind in KINDS}
    band = axis.fill_between(place, curves["minimal"], curves["maximal"], alpha=0.2, linewidth=0)
    band.set_label("any window: minimal to maximal")
    axis.plot(place, curves["random"], "o-", color="C0", label="random windows: mean")
    axis.plot(place, curves["aligned"], "s--", color="C1", label="aligned windows: mean")
    axis.set_xticks(place, [str(row["chunk_size"]) for row in rows], rotation=45, ha="right")
    # Only powers of ten are labelled: go on to the next ones.
    least, most = math.log10(min(curves["minimal"])), math.log10(max(curves["maximal"]))
    axis.set(yscale="log", ylim=(0.8 * 10 ** math.floor(least), 1.25 * 10 ** math.ceil(most)))
    axis.grid(alpha=0.3)
