"""Pictures of a study: all curves, and the score over each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("agg")  # draws into files: no window, no display needed

import matplotlib.pyplot as plt
import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from src.plots import save

if TYPE_CHECKING:  # the report imports this file
    from src.study_report import Result


def plot_curves(
    path: Path, results: Sequence[Result], winner: Result, between: int, unit: str
) -> None:
    """A curve for each trial, the mean of its seeds; pruned ones faint, the winner bold."""
    figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for result in results:
        curves = [curve for curve in result.curves if curve]
        if not curves:
            continue
        mean = np.mean([curve[: len(curves[0])] for curve in curves], axis=0)
        seen = between * np.arange(1, len(mean) + 1)
        if result is winner:
            for curve in curves:
                axis.plot(seen, curve, color="C3", linewidth=0.8, alpha=0.7)
            style: dict[str, Any] = {"color": "C3", "linewidth": 3, "zorder": 3}
            style["label"] = f"trial {result.number}: the best, and its seeds"
        elif result.ended:
            style = {"color": "0.75", "linestyle": "--", "marker": "x", "markevery": [-1]}
            style["label"] = "pruned or diverged"
        else:
            style = {"color": "C0", "alpha": 0.7, "label": "complete"}
        axis.plot(seen, mean, **style)
    handles, labels = axis.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))  # many curves share a label
    axis.legend(once.values(), once.keys())
    axis.set(xlabel="samples seen", ylabel=f"RMSE on the shared task ({unit})")
    axis.set_xticks(between * np.arange(1, len(winner.curves[0]) + 1))
    save(figure, path)


def plot_slices(
    path: Path,
    results: Sequence[Result],
    winner: Result,
    space: Mapping[str, BaseDistribution],
    unit: str,
) -> None:
    """The score over each setting: what the trials have in common, and what is only one's."""
    size = 3 * len(space), 3.4
    figure, axes = plt.subplots(
        1, len(space), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (key, values) in zip(axes[0], space.items(), strict=True):
        choices = list(values.choices) if isinstance(values, CategoricalDistribution) else []
        for result in results:
            if not result.scores:
                continue
            value = result.params[key]
            place = choices.index(value) if choices else value
            style: dict[str, Any] = {"fmt": "o", "color": "C0"}
            if result.ended:
                style |= {"fmt": "x", "color": "0.7"}
            elif result is winner:
                style |= {"color": "C3", "markersize": 9, "zorder": 3}
            spread = None if np.isnan(result.spread) else result.spread
            axis.errorbar(place, result.mean, yerr=spread, capsize=3, **style)
        if choices:
            texts = [str(choice).strip("[]").replace(", ", "x") for choice in choices]
            axis.set_xticks(range(len(choices)), texts)
            axis.set_xlim(-0.5, len(choices) - 0.5)
        elif getattr(values, "log", False):
            axis.set_xscale("log")
        axis.set_xlabel(key)
    axes[0, 0].set_ylabel(f"RMSE on the shared task ({unit})")
    figure.suptitle("red: best; blue: complete, ± spread of the seeds; grey: stopped early")
    save(figure, path)
