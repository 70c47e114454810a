"""What compare_precision.py has found: table, verdict, file and picture."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("agg")  # draws into files: no window, no display needed

import matplotlib.pyplot as plt
import numpy as np

# Okabe and Ito's colours, which also those tell apart who see fewer of them.
ROUNDED = "32-true, rounded"  # float32, from weights that were rounded to bfloat16 once
COLOURS = {"32-true": "#000000", ROUNDED: "#009E73", "bf16-mixed": "#0072B2", "16-mixed": "#D55E00"}
INSIDE: dict[str, Any] = {"textcoords": "offset points", "va": "top"}
SMOOTH = 10  # steps that a point of the picture is the mean of


class Result(NamedTuple):
    """One precision."""

    precision: str
    ms: float  # of a step, median over the rounds
    faster: float  # than float32, median over the rounds
    megabytes: float
    losses: np.ndarray
    rmse: float
    left_out: int  # steps with an infinite gradient


def difference(result: Result, reference: Result) -> float:
    """Mean relative difference of the last quarter's losses, each a mean of some steps."""
    own, theirs = smooth(result.losses), smooth(reference.losses)
    last = max(1, len(own) // 4)
    return float(np.mean(np.abs(own - theirs)[-last:] / theirs[-last:]))


def smooth(losses: np.ndarray) -> np.ndarray:
    """Means of SMOOTH steps each; the last steps may not fill one, and are left out."""
    width = min(SMOOTH, len(losses))
    return losses[: len(losses) // width * width].reshape(-1, width).mean(axis=1)


def table(results: Sequence[Result], memory_name: str) -> str:
    """The table for people."""
    head = f"{'precision':<18}{'ms/step':>9}{'faster':>9}{'MB ' + memory_name:>10}{'less':>8}"
    lines = [head + f"{'loss differs':>14}{'RMSE (K)':>10}{'left out':>10}"]
    for result in results:
        differs = difference(result, results[0])
        lines.append(
            f"{result.precision:<18}{result.ms:>9.1f}{result.faster:>8.2f}x{result.megabytes:>10.1f}"
            f"{results[0].megabytes / result.megabytes:>7.2f}x{differs:>13.2%}"
            f"{result.rmse:>10.4f}{result.left_out:>10}"
        )
    return "\n".join(lines)


def rmse_difference(result: Result, reference: Result) -> float:
    """Relative difference of the validation RMSE."""
    return abs(result.rmse - reference.rmse) / reference.rmse


def verdict(
    result: Result, reference: Result, rounded: Result, tolerance: float, rmse_tolerance: float
) -> str:
    """Whether the training is that of float32, as far as the tolerances tell, and what it gains."""
    curve = difference(result, reference)
    rmse = rmse_difference(result, reference)
    own = difference(rounded, reference), rmse_difference(rounded, reference)
    if curve <= tolerance and rmse <= rmse_tolerance:
        told = "within the tolerance"
    elif curve <= max(tolerance, own[0]) and rmse <= max(rmse_tolerance, own[1]):
        told = "outside the tolerance, but no further than float32 from itself, rounded once"
    else:
        told = "OUTSIDE the tolerance"
    word = "faster" if result.faster > 1.05 else "slower" if result.faster < 0.95 else "as fast"
    return (
        f"{result.precision}: {told}: losses "
        f"{curve:.2%} of {tolerance:.1%}, RMSE {rmse:.2%} of {rmse_tolerance:.1%}; "
        f"here {word} ({result.faster:.2f}x)"
    )


def write(path: Path, results: Sequence[Result]) -> None:
    """The losses of all steps, a column for each precision."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *(result.precision for result in results)])
        for step, losses in enumerate(zip(*(r.losses for r in results), strict=True), start=1):
            writer.writerow([step, *losses])


def draw(path: Path, results: Sequence[Result], tolerance: float) -> None:
    """The curves, and how far each is from that of float32."""
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9, 6), sharex=True, layout="constrained", height_ratios=[3, 2]
    )
    theirs = smooth(results[0].losses)
    steps = (np.arange(len(theirs)) + 1) * min(SMOOTH, len(results[0].losses))
    for result in results:
        own, colour = smooth(result.losses), COLOURS[result.precision]
        # Float32 is wider and below: where the curves agree, both can be seen.
        width = 4.0 if result is results[0] else 1.3
        shade = 0.3 if result is results[0] else 1.0
        above.plot(steps, own, color=colour, linewidth=width, alpha=shade, label=result.precision)
        if result is not results[0]:
            below.plot(steps, 100 * (own - theirs) / theirs, color=colour, linewidth=1.3)
    above.set(ylabel="training loss", yscale="log", title="The training in each precision")
    above.yaxis.set_major_formatter("{x:g}")
    above.yaxis.set_minor_formatter("{x:.2g}")
    above.legend(frameon=False)
    start = steps[-max(1, len(steps) // 4)]
    below.fill_between([start, steps[-1]], -100 * tolerance, 100 * tolerance, color="0.9")
    below.annotate("tolerance", (start, 100 * tolerance), (4, -4), color="0.4", **INSIDE)
    below.axhline(0, color="0.3", linewidth=0.8)
    # Differences of a thousandth and of a tenth are both worth a look.
    below.set_yscale("symlog", linthresh=0.1)
    below.yaxis.set_major_formatter("{x:g}")
    below.set(xlabel="step", ylabel="difference from float32 (%)")
    figure.savefig(path, dpi=110)
    plt.close(figure)
