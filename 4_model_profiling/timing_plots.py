"""Three pictures of a timing: the parts of each batch, the whole of each batch, the shares."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt
from step_timer import PARTS, Batch

# Okabe and Ito's colours, which also those tell apart who see fewer of them.
COLOURS = dict(
    zip(PARTS, ("#E69F00", "#F0E442", "#0072B2", "#56B4E9", "#009E73", "#999999"), strict=True)
)
MOST = 200  # bars that a picture can show; the last batches are drawn


def draw(folder: Path, batches: Sequence[Batch], warmup: int) -> None:
    """Write the pictures of one rank's batches."""
    breakdown(folder / "batch_time_breakdown.png", batches)
    totals(folder / "total_batch_time.png", batches, warmup)
    pie(folder / "time_distribution_pie.png", batches[warmup:])


def breakdown(path: Path, batches: Sequence[Batch]) -> None:
    """A bar for each batch, divided into its parts."""
    numbers = range(len(batches))[-MOST:]
    shown = [batches[number] for number in numbers]
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    bottom = [0.0] * len(shown)
    for part, colour in COLOURS.items():
        heights = [1e3 * batch.seconds[part] for batch in shown]
        axes.bar(numbers, heights, bottom=bottom, width=1.0, color=colour, label=part)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(xlabel="batch", ylabel="milliseconds", title="Parts of each batch")
    # One slow batch, the first as a rule, must not press all others flat.
    axes.set_ylim(0, min(max(bottom), 4 * median(bottom)) * 1.05)
    axes.legend(ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)
    save(figure, path)


def totals(path: Path, batches: Sequence[Batch], warmup: int) -> None:
    """The whole of each batch, in order and as a histogram."""
    values = [1e3 * batch.total for batch in batches]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9, 3.5), layout="constrained", width_ratios=[2, 1]
    )
    left.plot(values, color="#0072B2", linewidth=1)
    left.axvspan(-0.5, warmup - 0.5, color="#999999", alpha=0.3, label="warm-up, not counted")
    middle = median(values[warmup:])
    left.axhline(middle, color="#D55E00", linestyle="--", label=f"median {middle:.1f} ms")
    left.set(xlabel="batch", ylabel="milliseconds", title="Each batch", ylim=(0, None))
    left.legend()
    right.hist(values[warmup:], bins=30, color="#56B4E9")
    right.set(xlabel="milliseconds", ylabel="batches", title="How often")
    save(figure, path)


def pie(path: Path, batches: Sequence[Batch]) -> None:
    """The share of each part."""
    sums = {part: sum(batch.seconds[part] for batch in batches) for part in PARTS}
    whole = sum(sums.values())
    figure, axes = plt.subplots(figsize=(5.5, 4), layout="constrained")
    wedges, _ = axes.pie(
        list(sums.values()), colors=list(COLOURS.values()), startangle=90, counterclock=False
    )
    labels = [f"{part} {value / whole:.1%}" for part, value in sums.items()]
    figure.legend(wedges, labels, loc="outside right center", frameon=False)
    axes.set_title("Share of the time")
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=120)
    plt.close(figure)
