"""What the runs of a ladder say: a table, and a picture."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from step_timer import PARTS
from timing_plots import COLOURS, save

if TYPE_CHECKING:
    from step_ladder import Rung


def summarise(rungs: Sequence["Rung"], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each rung, from all its runs, in the order of the rungs.

    Ratios are medians of the ratios within a turn. ``loss_differs`` is the largest relative
    difference from the first rung's loss at the same step; None where the batches are others.
    """
    turns: dict[str, list[dict[str, Any]]] = {rung.name: [] for rung in rungs}
    for run in runs:
        turns[run["rung"]].append(run)
    first = turns[rungs[0].name]
    rows = []
    for rung in rungs:
        own = turns[rung.name]
        samples = [run["batch_size"] or 1 for run in own]
        # Per sample, because a variant may have another batch size.
        faster = [
            (start["step"] / (start["batch_size"] or 1)) / (run["step"] / size)
            for start, run, size in zip(first, own, samples, strict=True)
        ]
        same = own[0]["batch_size"] == first[0]["batch_size"]
        steps = [1e3 * run["step"] for run in own]
        rows.append(
            {
                "name": rung.name,
                "variant": rung.variant,
                "settings": rung.settings,
                "step_ms": round(median(steps), 3),
                "step_ms_range": [round(min(steps), 3), round(max(steps), 3)],
                "parts_ms": {
                    part: round(1e3 * median(run["parts"][part] for run in own), 3)
                    for part in PARTS
                },
                "samples_per_second": round(1e3 * samples[0] / median(steps), 1),
                "faster": round(median(faster), 3),
                "loss_differs": difference(first[0]["losses"], own) if same else None,
                "first_step_s": round(median(run["first_step"] for run in own), 2),
                "graphs": own[0]["graphs"],
                "peak_memory": own[0]["peak_memory"],
            }
        )
    return rows


def difference(losses: Sequence[float], runs: Sequence[dict[str, Any]]) -> float:
    """The largest relative difference of any run's losses from the given ones."""
    return max(
        abs(loss - own) / abs(loss)
        for run in runs
        for loss, own in zip(losses, run["losses"], strict=True)
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The table for people."""
    on_gpu = rows[0]["peak_memory"] is not None
    head = f"{'':<34}{'ms':>8}{'forward':>9}{'backward':>9}{'optimizer':>10}{'samples/s':>10}"
    head += f"{'faster':>8}{'loss':>9}{'1st step':>9}" + (f"{'MB':>8}" if on_gpu else "")
    lines = [head]
    for number, row in enumerate(rows):
        if row["variant"] and not rows[number - 1]["variant"]:
            lines.append("on top of it, each by itself")
        parts = row["parts_ms"]
        differs = row["loss_differs"]
        told = "other" if differs is None else f"{differs:.0e}" if differs else "same"
        lines.append(
            f"{row['name']:<34}{row['step_ms']:>8.2f}{parts['forward']:>9.2f}"
            f"{parts['backward']:>9.2f}{parts['optimizer']:>10.2f}"
            f"{row['samples_per_second']:>10.0f}{row['faster']:>7.2f}x{told:>9}"
            f"{row['first_step_s']:>7.1f} s"
            + (f"{row['peak_memory'] / 1e6:>8.0f}" if on_gpu else "")
        )
    return "\n".join(lines)


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A bar for each rung, divided into the parts of its step."""
    figure, axes = plt.subplots(figsize=(9, 0.45 * len(rows) + 1.6), layout="constrained")
    names = [("+ " if row["variant"] else "") + row["name"] for row in rows]
    left = [0.0] * len(rows)
    sizes = [row["step_ms"] * row["samples_per_second"] / 1e3 for row in rows]  # of the batches
    for part, colour in COLOURS.items():
        widths = [row["parts_ms"][part] / size for row, size in zip(rows, sizes, strict=True)]
        axes.barh(names, widths, left=left, color=colour, label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, end in zip(rows, left, strict=True):
        name = ("+ " if row["variant"] else "") + row["name"]
        axes.text(end, name, f" {row['faster']:.2f}x", va="center")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(xlabel="milliseconds per sample", title="From a first version to a fast one")
    axes.legend(ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.4, -0.15), frameon=False)
    save(figure, path)
