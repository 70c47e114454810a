"""Draw what the benchmark has logged: bars of all configurations, a timeline of the last two.

uv run python plot_benchmark_runs.py                        the ladder
uv run python plot_benchmark_runs.py --file benchmark_configs/dask_workers.yaml
"""

from pathlib import Path

import pandas as pd
from jsonargparse import auto_cli
from matplotlib.figure import Figure
from utils import read_configurations, read_log

from src.run.config import CHAPTER, HelpFormatter
from src.run.errors import UserError, one_line_errors


def bars(turns: pd.DataFrame, names: list[str]) -> Figure:
    """Medians of each configuration, and a point for each of its turns."""
    columns = {
        "samples_per_second": "1/s",
        "busy": "share of the time",
        "memory": "MB",
        "first_batch": "s",
    }
    turns = turns[turns["name"].isin(names)]
    medians = turns.groupby("name")[list(columns)].median().loc[names]
    figure = Figure(figsize=(14, 1.5 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True)
    for axis, (column, unit) in zip(axes, columns.items(), strict=True):
        axis.barh(names, medians[column])
        axis.plot(turns[column], turns["name"], ".", color="0.4")
        axis.set(title=column.replace("_", " "), xlabel=unit)
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()  # the first one at the top
    axes[0].set_xscale("log")  # they differ by orders of magnitude
    return figure


def timeline(turns: pd.DataFrame, names: list[str]) -> Figure:
    """When the first batches after the warm-up were loaded, waited for, and trained on."""
    figure = Figure(figsize=(12, 0.6 + 2.4 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axis, name in zip(axes, names, strict=True):
        turn = turns[turns["name"] == name].iloc[0]
        first = turn["settings"]["warmup"]
        columns = ["asked", "got", "done"]
        steps = pd.DataFrame(turn["steps"][first : first + 8], columns=columns)
        steps -= steps["asked"].iloc[0]
        waits = steps["got"] - steps["asked"]
        trains = steps["done"] - steps["got"]
        axis.barh("wait", waits, left=steps["asked"], color="C1")
        axis.barh("train", trains, left=steps["got"], color="C2")
        axis.set(title=name, xlabel="seconds")
    return figure


def main(file: str = "benchmark_configs/ladder.yaml") -> None:
    """Save bars.png, and timeline.png of the last two configurations.

    Args:
        file: the configurations, as the benchmark got them.
    """
    log = CHAPTER / "benchmark_logs" / f"{Path(file).stem}.jsonl"
    configurations = read_configurations(Path(file))
    turns = pd.DataFrame(read_log(log, configurations))
    if turns.empty:
        raise UserError(f"{log}: none of the configurations of {file}")
    measured = set(turns["name"])
    names = [name for name in configurations if name in measured]  # in the file's order
    folder = CHAPTER / "benchmark_imgs" / log.stem
    folder.mkdir(parents=True, exist_ok=True)
    bars(turns, names).savefig(folder / "bars.png", dpi=110)
    timeline(turns, names[-2:]).savefig(folder / "timeline.png", dpi=110)
    print(f"look at {folder.relative_to(CHAPTER)}: bars.png, timeline.png")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
