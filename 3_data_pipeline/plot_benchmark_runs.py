"""Pictures of a benchmark's log: who waits for whom, step by step, and the speeds side by side.

uv run python plot_benchmark_runs.py
uv run python plot_benchmark_runs.py --log benchmark_logs/ladder_30ms.jsonl --folder results
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from benchmark_datapipeline_configurations import read_log
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from src.errors import UserError, one_line_errors
from utils import CHAPTER, run_command, same_machine

WAIT, TRAIN, LOADER = "#d95f02", "#1b9e77", "#7570b3"
Run = dict[str, Any]


def runs_by_name(path: Path) -> dict[str, list[Run]]:
    """The runs of a log that succeeded, in its order. Raises UserError if there are none.

    Those of the machine that ran last: speeds of two machines are no pair of bars.
    """
    found: dict[str, list[Run]] = {}
    runs = read_log(path)
    for run in runs:
        if "error" not in run and same_machine(run["machine"], runs[-1]["machine"]):
            found.setdefault(run["name"], []).append(run)
    if not found:
        raise UserError(f"log: {path} has no successful run; the benchmark makes one")
    return found


def draw_timeline(axes: Axes, runs: dict[str, list[Run]], steps: int = 12) -> None:
    """Loading, waiting and training of the first measured steps, in each configuration's first run.

    Above the model's bar each line is a batch, from when it was asked for until it was there.
    """
    pairs = [list(zip(own[0]["waits"], own[0]["steps"], strict=True)) for own in runs.values()]
    runs_of_row = [own[0] for own in runs.values()]
    longest = max(sum(map(sum, own[:steps])) for own in pairs)
    for row, own in enumerate(pairs):
        now = 0.0
        for wait, step in own[:steps]:
            axes.barh(row, wait, left=now, color=WAIT, height=0.5)
            axes.barh(row, step, left=now + wait, color=TRAIN, height=0.5)
            now += wait + step
            if wait + step > longest / 50:  # else nothing but lines would be left of the bar
                axes.vlines(now, row - 0.25, row + 0.25, colors="white", linewidth=0.8)
        loads = runs_of_row[row].get("loads", [])[:steps]
        for number, (asked, there) in enumerate(loads):
            height = row - 0.29 - 0.05 * (number % 5)  # several are under way at the same time
            axes.hlines(height, max(asked, 0), max(there, 0), colors=LOADER, linewidth=1.2)
        axes.text(now, row, f" {len(own[:steps])} steps", va="center", fontsize=7)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * longest)
    axes.set_xlabel("time since the warm-up (s)")
    axes.legend(
        [mpl.patches.Patch(color=color) for color in (LOADER, WAIT, TRAIN)],
        ["a batch is loaded", "the model waits for a batch", "the model trains"],
        loc="lower right",
    )


def draw_bars(
    axes: Axes, runs: dict[str, list[Run]], key: str, label: str, factor: float = 1.0
) -> None:
    """Medians of a quantity, with lines from the smallest to the largest value."""
    values = [[run[key] * factor for run in own] for own in runs.values()]
    middles = [median(own) for own in values]
    errors = [
        [middle - min(own) for middle, own in zip(middles, values, strict=True)],
        [max(own) - middle for middle, own in zip(middles, values, strict=True)],
    ]
    axes.barh(range(len(runs)), middles, xerr=errors, color=LOADER, height=0.7)
    if min(middles) > 0 and max(middles) > 50 * min(middles):  # else the small ones are invisible
        axes.set_xscale("log")
    labels = [f"{middle:,.0f}" for middle in middles]
    axes.bar_label(axes.containers[-1], labels, padding=4, fontsize=7)  # type: ignore[arg-type]
    axes.set_yticks(range(len(runs)), list(runs))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(label)


def draw_heat_map(
    axes: Axes, runs: dict[str, list[Run]], keys: Sequence[str], column: str = "samples_per_second"
) -> None:
    """Medians over two settings of a grid, one along each axis. Raises UserError for others."""
    settings = {name: setting_of(own[0], keys) for name, own in runs.items()}
    rows, columns = (sorted({setting[axis] for setting in settings.values()}) for axis in (0, 1))
    if len(rows) * len(columns) != len(runs):
        raise UserError(f"grid: {' and '.join(keys)} are no grid of {len(runs)} configurations")
    place = {setting: name for name, setting in settings.items()}
    values = [[median(run[column] for run in runs[place[r, c]]) for c in columns] for r in rows]
    image = axes.imshow(values, cmap="viridis", aspect="auto")
    axes.figure.colorbar(image, ax=axes)
    low, high = min(map(min, values)), max(map(max, values))
    bright = low + 0.6 * (high - low)
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            ink = "black" if value > bright else "white"
            axes.text(x, y, f"{value:,.0f}", ha="center", va="center", color=ink)
    axes.set_yticks(range(len(rows)), list(map(str, rows)))
    axes.set_xticks(range(len(columns)), list(map(str, columns)))
    axes.set_ylabel(keys[0])
    axes.set_xlabel(keys[1])
    axes.set_title(column.replace("_", " "))


def setting_of(run: Run, keys: Sequence[str]) -> tuple[Any, ...]:
    """Values of two settings, the loader's or the dataset's."""
    known = run["configuration"] | run["configuration"].get("dataset_args", {})
    if missing := [key for key in keys if key not in known]:
        raise UserError(f"grid: {', '.join(missing)} not set in {run['name']}")
    return tuple(known[key] for key in keys)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"look at {path}")


def main(
    log: str = "benchmark_logs/ladder_30ms.jsonl",
    folder: str = "benchmark_imgs",
    grid: tuple[str, str] | None = None,
) -> None:
    """Draw a log.

    Args:
        log: what the benchmark has written.
        folder: where the pictures go.
        grid: two settings of a grid, for a heat map.
    """
    source, target = CHAPTER / log, CHAPTER / folder
    runs = runs_by_name(source)
    size = (9, 1.2 + 0.36 * len(runs))
    figure = Figure(figsize=size, layout="constrained")
    draw_timeline(figure.subplots(), runs)
    save(figure, target / f"{source.stem}-timeline.png")
    figure = Figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    draw_bars(left, runs, "samples_per_second", "samples per second")
    draw_bars(right, runs, "peak_memory_mb", "memory of all processes (MB)")
    left.invert_yaxis()  # shared: twice is once too often
    save(figure, target / f"{source.stem}-bars.png")
    if grid:
        figure = Figure(figsize=(6, 4), layout="constrained")
        draw_heat_map(figure.subplots(), runs, grid)
        save(figure, target / f"{source.stem}-heat_map.png")


if __name__ == "__main__":
    with one_line_errors():
        run_command(main, __doc__)
        sys.exit()
