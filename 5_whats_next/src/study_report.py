"""What a study has found: the table, the winner's config, the pictures, and what it cannot tell."""

import csv
import math
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from src.config import parse_config
from src.errors import UserError
from src.lightning_settings import LightningSettings
from src.study_plots import plot_curves, plot_slices
from src.study_run import Study, short
from src.study_space import as_arguments


@dataclass
class Result:
    """A trial that is done.

    ``curves`` has a row for each training that was begun, with an RMSE per evaluation; ``speed``
    is in samples per second, without the evaluations.
    """

    number: int  # 1 for the first one
    params: dict[str, Any]
    ended: str  # "" for a complete one, else pruned or diverged
    curves: list[list[float]]
    own: float
    speed: float

    @property
    def scores(self) -> list[float]:
        """The last RMSE of each training."""
        return [curve[-1] for curve in self.curves if curve]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores) if self.scores else math.inf

    @property
    def spread(self) -> float:
        """Standard deviation from one seed to another; nan for a single one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else math.nan


def result_of(trial: FrozenTrial, number: int, between: int) -> Result:
    trainings = trial.user_attrs["trainings"]
    curves = [one["curve"] for one in trainings]
    seen, seconds = between * sum(map(len, curves)), sum(one["seconds"] for one in trainings)
    own = [one["own"] for one in trainings if one["curve"]]
    return Result(
        number=number,
        params=trial.params,
        ended=trial.user_attrs["ended"],
        curves=curves,
        own=statistics.fmean(own) if own else math.nan,
        speed=seen / seconds if seconds else math.nan,
    )


def report(study: Study, folder: Path) -> None:
    """Print all of it, and write it to ``folder``."""
    trials = study.finished()
    results = [
        result_of(trial, number, study.settings.between)
        for number, trial in enumerate(trials, start=1)
    ]
    complete = sorted((r for r in results if not r.ended), key=lambda r: r.mean)
    stopped = sorted((r for r in results if r.ended), key=lambda r: (-len(r.curves[0]), r.mean))
    unit = unit_of(study)
    if not complete:
        raise UserError("no trial was completed: all diverged; lower optimizer.lr in the space")
    print(header(study, results))
    print(table(complete + stopped, unit, study.settings.between))
    print(verdict(complete, stopped, study, unit))
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "table.csv", complete + stopped, unit)
    write_winner(folder / "best.yaml", study, complete[0], unit)
    plot_curves(folder / "curves.png", results, complete[0], study.settings.between, unit)
    plot_slices(folder / "slices.png", results, complete[0], study.space, unit)
    where = os.path.relpath(folder)
    print(f"look at {where}: curves.png, slices.png, table.csv")
    print(f"to train the winner:\n  uv run python lightning_train.py -c {where}/best.yaml")


def unit_of(study: Study) -> str:
    """Of the scores."""
    dataset = study.datasets("val")
    return dataset.units[0] if len(dataset.variables) == 1 else "spreads"


def header(study: Study, results: list[Result]) -> str:
    """How much was done, and what all are scored on."""
    settings, task = study.settings, study.task
    most = settings.trials * settings.seeds * settings.samples
    seen = settings.between * sum(len(curve) for r in results for curve in r.curves)
    seconds = sum(
        one["seconds"] for trial in study.finished() for one in trial.user_attrs["trainings"]
    )
    killed = len(study.study.get_trials(deepcopy=False, states=(TrialState.FAIL,)))
    ends = [sum(r.ended == end for r in results) for end in ("", "pruned", "diverged")]
    block = "x".join(map(str, task.block))
    return (
        f"study     {study.folder.name}: {len(results)} trials, {ends[0]} complete, "
        f"{ends[1]} pruned, {ends[2]} diverged" + (f"; {killed} interrupted" * bool(killed)) + "\n"
        f"budget    {settings.samples} samples in each of {settings.seeds} trainings; seen {seen} "
        f"of {most}, in {seconds:.0f} s of training\n"
        f"scored on {task.mask_ratio:.0%} of the blocks of {block} hidden, the same for all trials"
    )


def table(results: list[Result], unit: str, between: int) -> str:
    """A line for each trial, the best first."""
    keys = list(results[0].params)
    names = [key.rpartition(".")[2] for key in keys]
    lines = [["trial", f"RMSE ({unit})", "own task", "samples/s", *names]]
    for r in results:
        score = f"{r.mean:.4f}" if r.scores else "-"
        if r.ended:
            score = f"{r.ended} at {between * len(r.curves[0])}: {score}"
        elif len(r.scores) > 1:
            score += f" ± {r.spread:.4f}"
        values = [short(r.params[key]) for key in keys]
        lines.append([str(r.number), score, f"{r.own:.4f}", f"{r.speed:.0f}", *values])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def pooled_spread(complete: list[Result]) -> float:
    """Standard deviation between seeds, from all trials together: two seeds alone say little."""
    return math.sqrt(statistics.fmean(r.spread**2 for r in complete))


def verdict(complete: list[Result], stopped: list[Result], study: Study, unit: str) -> str:
    """Who has won, whether that is chance, and what the study cannot tell."""
    settings, winner = study.settings, complete[0]
    lines = [f"best      trial {winner.number}: {winner.mean:.4f} {unit}"]
    if settings.seeds == 1:
        lines.append("chance    unknown: with one seed nothing tells luck from settings")
    else:
        spread = pooled_spread(complete)
        margin = 2 * spread * math.sqrt(2 / settings.seeds)
        rivals = [r for r in complete[1:] if r.mean - winner.mean <= margin]
        freedom = len(complete) * (settings.seeds - 1)
        lines.append(
            f"chance    seeds differ by ± {spread:.4f} {unit} ({freedom} degrees of freedom); "
            f"differences of means up to {margin:.4f} tell nothing"
        )
        if rivals:
            numbers = ", ".join(str(r.number) for r in rivals)
            lines.append(f"          not distinguishable from the best: trial {numbers}")
        elif complete[1:]:
            gap = complete[1].mean - winner.mean
            lines.append(f"          the runner-up is {gap:.4f} {unit} behind: distinguishable")
    first = next((r for r in complete if r.number == 1), None)
    if study.baseline is not None and first:
        change = winner.mean - first.mean
        lines.append(f"baseline  trial 1 has the values of config.yaml; best: {change:+.4f} {unit}")
    share = settings.samples / len(study.datasets("train"))
    lines += [
        "It cannot tell:",
        f"  what a long training wants: these have {share:.2g} epochs. Short ones favour high",
        "    learning rates, large patches and small batches: whatever gets far in a few steps",
        "  how good the winner is: it was picked for its score, so a repeat will be a little worse",
        "  what holds for a larger model or more data; check the learning rate again there",
        "  what two settings do together, where few trials have tried both",
    ]
    if pruned := sum(r.ended == "pruned" for r in stopped):
        lines.append(f"  whether a slow starter was among the {pruned} that were pruned")
    return "\n".join(lines)


def write_table(path: Path, results: list[Result], unit: str) -> None:
    """The same as a CSV file, with all digits."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        columns = ["trial", "ended", f"rmse_{unit}", "spread", "seeds", "own", "samples_per_second"]
        writer.writerow(columns + list(results[0].params))
        for r in results:
            numbers = [r.mean, r.spread, len(r.scores), r.own, r.speed]
            writer.writerow([r.number, r.ended, *numbers, *r.params.values()])


def write_winner(path: Path, study: Study, winner: Result, unit: str) -> None:
    """The train script's configuration, without what only the study's trainings had."""
    words = [*study.words, *as_arguments(winner.params)]
    resolved = parse_config("", words, settings=LightningSettings)[1]
    note = (
        f"# Trial {winner.number} of the study {study.folder.name}: {winner.mean:.4f} {unit} after "
        f"{study.settings.samples} samples.\n"
    )
    path.write_text(note + resolved)
