"""How long a restart of the learning rate should be apart: measured from a run.

  uv run python restart_recovery.py output/run_1          a run with schedule cosine_restarts
  uv run python restart_recovery.py metrics.csv --window 20

After a restart the loss jumps up and falls again. The rule: let a cycle last 2 to 3 times the
epochs until the loss is back where it was just before the restart. This reads the training losses
of metrics.csv and prints these epochs for each restart, and the period that follows.
"""

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from src.errors import UserError
from src.lightning_errors import one_line_errors


class Restart(NamedTuple):
    """One jump of the learning rate; steps are optimiser steps."""

    step: int  # the first one with the high rate
    before: float  # loss just before
    highest: float  # loss in between
    recovered: int | None  # steps until the loss was back; None if it was not before the next one


def main() -> int:
    """Read the command line and the file, report. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", help="the run's folder, or its metrics.csv")
    parser.add_argument("--window", type=int, default=5, help="rows that a loss is the mean of")
    given = parser.parse_args()
    if given.window < 1:
        raise UserError(f"--window: {given.window} is too small; allowed: 1 and more")
    path = Path(given.run)
    path = path / "metrics.csv" if path.is_dir() else path
    steps, losses, rates, per_epoch = read(path)
    found = restarts(steps, losses, rates, given.window)
    if not found:
        raise UserError(f"{path}: no restart in it; allowed: a run with cosine_restarts")
    print(report(found, per_epoch, steps[-1]))
    return 0


def read(path: Path) -> tuple[list[int], list[float], list[float], float]:
    """Steps, training losses and learning rates of the logged steps, and the steps of an epoch.

    Raises UserError if the file is not there, or holds something else.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; allowed: a run's folder, or a metrics.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        trained = [row for row in rows if row["train_loss"]]
        # An epoch ends with its validation, at its last step.
        ends = [int(row["step"]) / (int(row["epoch"]) + 1) for row in rows if row["val_loss"]]
        steps = [int(row["step"]) for row in trained]
        losses = [float(row["train_loss"]) for row in trained]
        rates = [float(row["lr"]) for row in trained]
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not the metrics of a run ({error})") from error
    if not ends:
        raise UserError(f"{path}: no epoch has ended yet")
    return steps, losses, rates, ends[-1]


def restarts(
    steps: Sequence[int], losses: Sequence[float], rates: Sequence[float], window: int
) -> list[Restart]:
    """The jumps of the learning rate, and what the loss did then.

    Args:
        steps: optimiser steps, in order.
        losses: training loss of each.
        rates: learning rate of each.
        window: rows that a loss is the mean of.
    """
    # In the warmup the rate rises too; a restart is a rise after a fall.
    falls = [i for i in range(1, len(rates)) if rates[i] < rates[i - 1]]
    jumps = [i for i in range(1, len(rates)) if falls and falls[0] < i and rates[i] > rates[i - 1]]
    found = []
    ends = [*jumps[1:], len(losses)] if jumps else []
    for jump, end in zip(jumps, ends, strict=True):
        before = mean(losses[max(0, jump - window) : jump])
        # Means of rows that all lie behind the restart.
        after = [mean(losses[i - window : i]) for i in range(jump + window, end + 1)]
        peak = max(range(len(after)), key=after.__getitem__, default=0)
        back = next((i for i in range(peak, len(after)) if after[i] <= before), None)
        recovered = None if back is None else steps[jump + window + back - 1] - steps[jump - 1]
        highest = max(after, default=math.nan)
        found.append(Restart(steps[jump], before, highest, recovered))
    return found


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def report(found: Sequence[Restart], per_epoch: float, total_steps: int) -> str:
    """The table for people, and the period that the rule gives."""
    lines = [f"{'restart at epoch':>17}{'loss before':>13}{'highest':>9}{'epochs until back':>19}"]
    for one in found:
        back = one.recovered
        told = "not before the next" if back is None else f"{back / per_epoch:.2f}"
        lines.append(
            f"{(one.step - 1) / per_epoch:>17.2f}{one.before:>13.4f}{one.highest:>9.4f}{told:>19}"
        )
    known = [one.recovered / per_epoch for one in found if one.recovered is not None]
    if len(known) < len(found):
        lines.append("a cycle was too short for the loss to come back: take fewer cycles")
        return "\n".join(lines)
    low, high = 2 * max(known), 3 * max(known)
    epochs = total_steps / per_epoch
    lines.append(f"the rule (2 to 3 times the longest): a period of {low:.2f} to {high:.2f} epochs")
    most, least = math.floor(epochs / low), math.ceil(epochs / high)
    if most < 2:
        lines.append(f"in {epochs:.2f} epochs there is no room for two such cycles: no restart")
    else:
        cycles = " to ".join(str(number) for number in sorted({max(2, least), most}))
        lines.append(f"in {epochs:.2f} epochs: optimizer.cycles {cycles}")
    return "\n".join(lines)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
