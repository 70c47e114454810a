"""What compare_schedules.py has found: table, verdict, file and picture."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("agg")  # draws into files: no window, no display needed

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

# Okabe and Ito's colours, which also those tell apart who see fewer of them.
COLOURS = {"cosine": "#0072B2", "constant": "#999999", "cosine_restarts": "#D55E00"}
REFERENCE = "cosine"
CLOSE = 1.1  # times the reference's last RMSE: who is there has learnt most of it


class Run(NamedTuple):
    """One training."""

    schedule: str
    seed: int
    losses: list[float]  # of each step
    rates: list[float]
    measured: list[tuple[int, float]]  # step and validation RMSE in kelvin


def last(runs: Sequence[Run], schedule: str) -> np.ndarray:
    """The final RMSE of each seed (S,)."""
    return np.array([run.measured[-1][1] for run in runs if run.schedule == schedule])


def interval(runs: Sequence[Run], schedule: str) -> tuple[float, float]:
    """Mean difference from the reference, seed by seed, and half its 95 % interval.

    Student's t for paired samples: what a seed changes for all schedules alike falls out.
    """
    from scipy.stats import t

    gaps = last(runs, schedule) - last(runs, REFERENCE)
    error = gaps.std(ddof=1) / np.sqrt(len(gaps))
    return float(gaps.mean()), float(error * t.ppf(0.975, len(gaps) - 1))


def steps_until(runs: Sequence[Run], schedule: str) -> list[int]:
    """Steps to the first validation from which on the RMSE is close to the reference's last one.

    A schedule that jumps away from there again has not arrived.
    """
    limit = CLOSE * float(last(runs, REFERENCE).mean())
    found = []
    for run in runs:
        if run.schedule == schedule:
            above = [step for step, rmse in run.measured if rmse > limit]
            later = [step for step, _ in run.measured if not above or step > above[-1]]
            found += later[:1]
    return found


def table(runs: Sequence[Run], per_epoch: int) -> str:
    """The table for people."""
    head = f"{'schedule':<18}{'last RMSE (K)':>19}{'against cosine, 95 %':>24}"
    lines = [head + f"{f'epochs to {CLOSE} x cosine':>25}"]
    for schedule in COLOURS:
        own = last(runs, schedule)
        gap, half = interval(runs, schedule)
        told = "-" if schedule == REFERENCE else f"{gap:+.4f} ± {half:.4f}"
        until = steps_until(runs, schedule)
        arrived = len(until) == len(own)
        some = f"{len(until)} of {len(own)} runs"
        steps = f"{np.mean(until) / per_epoch:.2f}" if arrived else some
        lines.append(
            f"{schedule:<18}{own.mean():>10.4f} ± {own.std(ddof=1):.4f}{told:>24}{steps:>25}"
        )
    return "\n".join(lines)


def verdict(runs: Sequence[Run]) -> str:
    """What the numbers say, and no more."""
    lines = []
    for schedule in COLOURS:
        if schedule == REFERENCE:
            continue
        gap, half = interval(runs, schedule)
        share = gap / float(last(runs, REFERENCE).mean())
        if abs(gap) <= half:
            told = f"no difference from {REFERENCE} that these seeds could show"
        else:
            told = f"{abs(share):.1%} {'worse' if gap > 0 else 'better'} than {REFERENCE}"
        lines.append(f"{schedule}: {told}")
    return "\n".join(lines)


def write(path: Path, runs: Sequence[Run]) -> None:
    """A row for each step of each training; the RMSE where it was measured."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["schedule", "seed", "step", "lr", "train_loss", "rmse"])
        for run in runs:
            measured = dict(run.measured)
            for step, (rate, loss) in enumerate(zip(run.rates, run.losses, strict=True), start=1):
                writer.writerow([run.schedule, run.seed, step, rate, loss, measured.get(step, "")])


def draw(path: Path, runs: Sequence[Run]) -> None:
    """Validation and training over the steps, mean and range of the seeds, and the rates."""
    figure, (above, middle, below) = plt.subplots(
        3, 1, figsize=(9, 8), sharex=True, layout="constrained", height_ratios=[3, 3, 2]
    )
    for schedule, colour in COLOURS.items():
        own = [run for run in runs if run.schedule == schedule]
        steps = [step for step, _ in own[0].measured]
        band(above, steps, np.array([[rmse for _, rmse in r.measured] for r in own]), colour)
        width = max(1, len(own[0].losses) // 60)
        kept = len(own[0].losses) // width * width
        losses = np.array([r.losses[:kept] for r in own]).reshape(len(own), -1, width).mean(axis=2)
        band(middle, width * (1 + np.arange(losses.shape[1])), losses, colour)
        below.plot(range(1, len(own[0].rates) + 1), own[0].rates, color=colour, label=schedule)
    number = len({run.seed for run in runs})
    title = f"The same training with three schedules: mean and range of {number} seeds"
    above.set(ylabel="validation RMSE (K)", yscale="log", title=title)
    middle.set(ylabel="training loss", yscale="log")
    for axes in (above, middle):
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:.2g}")
    below.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    below.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.35))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def band(axes: Axes, steps: Sequence[int] | np.ndarray, values: np.ndarray, colour: str) -> None:
    """Mean, and from the lowest to the highest, of ``values`` (seeds, steps)."""
    axes.plot(steps, values.mean(axis=0), color=colour, linewidth=1.5)
    axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2)
