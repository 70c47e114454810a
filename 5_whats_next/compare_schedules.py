"""Compare schedules of the learning rate: cosine, constant, and cosine with warm restarts.

  uv run python compare_schedules.py                       three seeds of each, under three minutes
  uv run python compare_schedules.py --epochs 12 --cycles 4 --seeds 5
  uv run python compare_schedules.py --optimizer.lr 1e-3   the same question at another peak

With the same seed, all schedules have the same first weights, samples and masks. Prints a table
with the spread over the seeds, and a verdict; the picture and the curves go to a new folder
output/schedule/run_N.
"""

import os
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from jsonargparse import Namespace
from restart_recovery import report, restarts
from schedule_report import Run, draw, table, verdict, write
from short_training import ShortTraining, batches, options, parse, results_folder
from src.data.loaders import make_loaders
from src.device import choose_device, describe_device
from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.optim import check_schedule, cycle_starts
from tqdm import tqdm

SCHEDULES = ("cosine", "constant", "cosine_restarts")


class Plan(NamedTuple):
    """How long each training is, and when it is validated."""

    steps: int
    every: int  # steps between two validations
    seeds: int
    restarts: dict[str, int]  # arguments of make_optimizer


def main() -> int:
    """Read the command line, train, report. Returns the exit code."""
    parser = options(__doc__)
    add = parser.add_argument
    add("--epochs", type=int, default=2, help="length of each training")
    add("--cycles", type=int, default=2, help="cycles of cosine_restarts")
    add("--cycle-factor", type=int, default=1, help="how many times longer each cycle is")
    add("--seeds", type=int, default=3, help="trainings of each schedule")
    add("--validations", type=int, default=12, help="during each training")
    chosen, config = parse(parser)
    if chosen.seeds < 2:
        raise UserError(f"--seeds: {chosen.seeds} has no spread; allowed: 2 and more")
    cycles = {"cycles": chosen.cycles, "cycle_factor": chosen.cycle_factor}
    check_schedule("cosine_restarts", chosen.cycles, chosen.cycle_factor, 0.0)
    loaders = make_loaders(**vars(config.data), seed=config.seed_everything)
    steps = chosen.epochs * loaders.steps_per_epoch
    warmup = round(config.optimizer.warmup_fraction * steps)
    cycle_starts(warmup, steps, chosen.cycles, chosen.cycle_factor)  # raises if they do not fit
    if chosen.validations > steps:
        given = chosen.validations
        raise UserError(f"--validations: {given} in {steps} steps; allowed: 1 to {steps}")
    device = choose_device(config.trainer.accelerator)
    print(f"device    {describe_device(device)}")
    print(
        f"training  {steps} steps ({chosen.epochs} epochs), {config.data.batch_size} samples each; "
        f"{chosen.seeds} seeds of {len(SCHEDULES)} schedules",
        flush=True,
    )
    plan = Plan(steps, max(1, steps // chosen.validations), chosen.seeds, cycles)
    runs = train_all(config, plan, device)
    print(table(runs, loaders.steps_per_epoch))
    print(verdict(runs))
    losses = np.mean([run.losses for run in runs if run.schedule == "cosine_restarts"], axis=0)
    rates = next(run.rates for run in runs if run.schedule == "cosine_restarts")
    print("\nafter a restart, mean of the seeds")
    window = max(1, loaders.steps_per_epoch // 8)  # a single batch says little
    found = restarts(range(1, steps + 1), losses.tolist(), rates, window)
    print(report(found, loaders.steps_per_epoch, steps))
    folder = results_folder("schedule")
    write(folder / "curves.csv", runs)
    draw(folder / "curves.png", runs)
    print(f"look at {os.path.relpath(folder)}: curves.png, curves.csv")
    return 0


def train_all(config: Namespace, plan: Plan, device: torch.device) -> list[Run]:
    """Train with each seed and schedule."""
    runs = []
    bar = tqdm(
        total=plan.seeds * len(SCHEDULES) * plan.steps,
        unit="step",
        disable=not sys.stderr.isatty(),
    )
    with bar:
        for number in range(plan.seeds):
            seed = config.seed_everything + number
            for schedule in SCHEDULES:
                bar.set_postfix_str(f"seed {seed}, {schedule}")
                runs.append(train(config, plan, device, seed, schedule, bar))
    return runs


def train(
    config: Namespace, plan: Plan, device: torch.device, seed: int, schedule: str, bar: tqdm
) -> Run:
    """One training; the order of the samples follows the seed, too."""
    loaders = make_loaders(**vars(config.data), seed=seed)
    settings: dict[str, Any] = {"cycles": 1, "cycle_factor": 1}
    if schedule == "cosine_restarts":
        settings = dict(plan.restarts)
    if schedule == "constant":
        settings["min_lr_fraction"] = 0.0  # it has no end to fall to
    training = ShortTraining(
        config, loaders, device, plan.steps, seed, schedule=schedule, **settings
    )
    source = batches(loaders, device)
    measured = []
    for step in range(1, plan.steps + 1):
        training.step(*next(source))
        bar.update()
        # The last one is at the end: what lies between the others is counted from there.
        if (plan.steps - step) % plan.every == 0:
            measured.append((step, training.rmse()))
    return Run(schedule, seed, training.curve(), training.rates, measured)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
