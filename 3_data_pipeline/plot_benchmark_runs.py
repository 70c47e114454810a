"""Draw what the benchmark has logged: bars of all configurations, a timeline of the last two.

uv run python plot_benchmark_runs.py                        the ladder
uv run python plot_benchmark_runs.py --file benchmark_configs/dask_workers.yaml
"""

from pathlib import Path

import pandas as pd
from jsonargparse import auto_cli
from matplotlib.figure import Figure
from utils import read_configurations

from src.config import CHAPTER, HelpFormatter
from src.errors import UserError, one_line_errors

STAGES = {  # columns of `steps` in the log: from when, until when
    "load": ("start", "end", "tab:blue"),
    "wait": ("asked", "got", "tab:red"),
    "train": ("got", "done", "tab:green"),
}


def bars(turns: pd.DataFrame, names: list[str]) -> Figure:
    """Medians of each configuration, and the range of its turns."""
    columns = {
        "samples_per_second": "1/s",
        "busy": "",
        "memory": "MB",
        "first_batch": "s",
    }
    names = names[::-1]  # the first one is drawn at the bottom
    groups = turns.groupby("name")[list(columns)]
    middle = groups.median().loc[names]
    low = groups.min().loc[names]
    high = groups.max().loc[names]
    figure = Figure(figsize=(14, 1.5 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True)
    for axis, column in zip(axes, columns, strict=True):
        unit = columns[column]
        below = middle[column] - low[column]
        above = high[column] - middle[column]
        axis.barh(
            names,
            middle[column],
            xerr=[below, above],
            color="tab:blue",
            ecolor="0.4",
        )
        axis.set(title=column.replace("_", " "), xlabel=unit)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_xscale("log")  # they differ by orders of magnitude
    return figure


def timeline(turns: pd.DataFrame, names: list[str]) -> Figure:
    """When the first batches after the warm-up were loaded, waited for, and trained on."""
    figure = Figure(figsize=(12, 0.6 + 2.4 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axis, name in zip(axes, names, strict=True):
        matching = turns[turns["name"] == name]
        first = matching["settings"].iloc[0]["warmup"]
        columns = ["start", "end", "asked", "got", "done"]
        steps = pd.DataFrame(
            matching["steps"].iloc[0][first : first + 8], columns=columns
        )
        steps -= steps["asked"].iloc[0]
        for height, stage in enumerate(STAGES):
            begin, end, colour = STAGES[stage]
            # Batches may be loaded at the same time, so loading gets a row for each batch.
            rows = (
                steps.index if stage == "load" else [len(steps) + height] * len(steps)
            )
            axis.barh(
                rows,
                steps[end] - steps[begin],
                left=steps[begin],
                color=colour,
                label=stage,
            )
        axis.set(title=name, xlabel="seconds", yticks=[])
        axis.set_xlim(0, max(steps["done"]))  # what was loaded before is cut off
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))  # beside the bars
    return figure


def main(file: str = "benchmark_configs/ladder.yaml") -> None:
    """Save bars.png, and timeline.png of the last two configurations.

    Args:
        file: the configurations, as the benchmark got them.
    """
    log = CHAPTER / "benchmark_logs" / f"{Path(file).stem}.jsonl"
    turns = pd.read_json(log, lines=True)  # a row for each turn
    measured = set(turns["name"])
    # In the file's order, and without those that are commented out.
    names = [name for name in read_configurations(Path(file)) if name in measured]
    if not names:
        raise UserError(f"{log}: none of the configurations of {file}")
    folder = CHAPTER / "benchmark_imgs" / log.stem
    folder.mkdir(parents=True, exist_ok=True)
    bars(turns, names).savefig(folder / "bars.png", dpi=110)
    timeline(turns, names[-2:]).savefig(folder / "timeline.png", dpi=110)
    print(f"look at {folder.relative_to(CHAPTER)}: bars.png, timeline.png")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
