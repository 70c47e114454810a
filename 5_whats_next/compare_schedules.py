"""Compare schedules of the learning rate: constant, step, cosine, and cosine with warm restarts.

uv run python compare_schedules.py                            three seeds of each
uv run python compare_schedules.py --trainer.max_epochs 4 --optimizer.periods 4

With the same seed, all schedules have the same first weights, samples and masks. The table and the
picture go to output/schedules. A file's max_epochs does not count; give --trainer.max_epochs.
"""

import os
import sys
from typing import get_args

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jsonargparse import Namespace
from lightning_train import CLASSES
from short_run import Recorder, results_folder, short_training
from tqdm import tqdm

from src.run.config import parse_config
from src.run.errors import one_line_errors
from src.run.optim import Schedule

SEEDS = 3


def train_all(config: Namespace) -> dict[str, list[Recorder]]:
    """A training for each schedule and seed."""
    schedules = get_args(Schedule)
    first_seed = config.seed_everything
    runs: dict[str, list[Recorder]] = {name: [] for name in schedules}
    with tqdm(total=SEEDS * len(schedules), desc="trainings", disable=None) as bar:
        for seed in range(first_seed, first_seed + SEEDS):
            for name in schedules:
                config.seed_everything = seed
                config.optimizer.schedule = name
                runs[name].append(short_training(config, Recorder()))
                bar.update()
    return runs


def smooth(losses: list[float], steps: int) -> np.ndarray:
    """The mean of the last ``steps`` losses, for each step: a single batch says little."""
    return pd.Series(losses).rolling(steps, min_periods=1).mean().to_numpy()


def steps_until_back(run: Recorder, window: int) -> list[float]:
    """For each restart, the steps until the loss is as low as before it; infinite if never."""
    rates = np.array(run.rates)
    losses = smooth(run.losses, window)
    # A restart more than doubles the rate. So do the first steps of the warmup: before the peak.
    restarts = np.flatnonzero(rates[1:] > 2 * rates[:-1]) + 1
    waits = []
    for restart in restarts[restarts > np.argmax(rates)]:
        # The mean needs a whole window of losses from after the restart.
        is_back = losses[restart + window - 1 :] <= losses[restart - 1]
        waits.append(float(window + is_back.argmax()) if is_back.any() else np.inf)
    return waits


def final_score(run: Recorder, name: str) -> float:
    """That of the last validation."""
    return run.scores[max(run.scores)][name]


def main() -> None:
    """Read the command line, train, report."""
    arguments = ["--trainer.max_epochs=2", *sys.argv[1:]]
    config, _ = parse_config(__doc__, arguments, *CLASSES)
    runs = train_all(config)

    (*_, end) = runs["cosine"][0].scores.values()
    rmse = next(name for name in end if name.startswith("rmse_"))
    last = {
        name: np.array([final_score(run, rmse) for run in seeds])
        for name, seeds in runs.items()
    }
    print(f"schedule    {rmse}     minus that of cosine, by seed")
    for name, values in last.items():
        pairs = "  ".join(f"{value:+.4f}" for value in values - last["cosine"])
        print(f"{name:<12}{values.mean():.4f} ± {values.std(ddof=1):.4f}   {pairs}")
    epoch = len(runs["cosine"][0].losses) / config.trainer.max_epochs
    window = max(1, round(epoch / 8))
    steps = [steps_until_back(run, window) for run in runs["restarts"]]
    waits = np.array(steps) / epoch  # (seeds, restarts), in epochs
    longest = waits.max(initial=0)
    print(
        "epochs until the loss is back, by restart:", *np.round(waits.mean(axis=0), 2)
    )
    print(f"the rule, 2 to 3 times the longest: {2 * longest:.2f} to {3 * longest:.2f}")
    draw(runs, rmse)


def draw(runs: dict[str, list[Recorder]], rmse: str) -> None:
    """Rates, smoothed losses and scores, the seeds' mean."""
    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(7, 7), layout="constrained")
    for name, seeds in runs.items():
        axes[0].plot(seeds[0].rates, label=name)
        axes[1].semilogy(
            smooth(np.mean([run.losses for run in seeds], axis=0).tolist(), 20)
        )
        steps = list(seeds[0].scores)
        scores = np.array([[row[rmse] for row in run.scores.values()] for run in seeds])
        axes[2].errorbar(
            steps,
            scores.mean(axis=0),
            scores.std(axis=0, ddof=1),
            marker="o",
            capsize=3,
        )
    axes[0].set(title="Four schedules, mean of the seeds", ylabel="learning rate")
    axes[0].legend()
    axes[1].set(ylabel="training loss, mean of 20 steps")
    axes[2].set(xlabel="step", ylabel=rmse.replace("_", " "))
    folder = results_folder("schedules")
    figure.savefig(folder / "curves.png", dpi=150)
    print(f"look at {os.path.relpath(folder)}: curves.png")


if __name__ == "__main__":
    with one_line_errors():
        main()
