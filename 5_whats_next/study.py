"""Experiment first: short trainings with other settings, searched with Optuna (https://optuna.org).

uv run python study.py                     12 trials; the same command again tries 12 more
uv run python study.py -c config/mine.yaml

The settings are those of lightning_train.py. A file's max_epochs does not count; give
--trainer.max_epochs. Edit `suggest` to search others, and NAME for a new study.
"""

import math
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import optuna  # uv sync --group study
import torch
from lightning_train import CLASSES
from matplotlib.ticker import MaxNLocator
from optuna.trial import TrialState
from short_run import Recorder, results_folder, short_training
from torch import Tensor
from torch.utils.data import DataLoader

from src.data.pytorch_dataset import FieldDataset
from src.model.masking import random_mask
from src.model.pytorch_model import MaskedAutoencoder
from src.run.config import parse_config
from src.run.errors import UserError, one_line_errors
from src.run.evaluation import latitude_weights, squared_error, to_scores

TRIALS = 12
NAME = "small"
SHORT = "--trainer.max_epochs=4"  # the same number of samples for each
BLOCK = (6, 8, 8)  # each patch size has to divide it, and it the window
HIDDEN = 0.75  # share of the blocks
PATCHES = ["[3,4,4]", "[6,4,4]", "[3,8,8]"]


def suggest(trial: Any) -> dict[str, Any]:
    """The settings that are searched, by the keys of config.yaml."""
    return {
        "model.patch_size": trial.suggest_categorical("patch_size", PATCHES),
        "model.mask_ratio": trial.suggest_float("mask_ratio", 0.5, 0.9, step=0.05),
        "optimizer.lr": trial.suggest_float("lr", 5e-4, 2e-2, log=True),
        "data.batch_size": trial.suggest_categorical("batch_size", [16, 32, 64]),
    }


# config.yaml
FIRST = {"patch_size": "[3,4,4]", "mask_ratio": 0.75, "lr": 4e-3, "batch_size": 16}


def hidden_blocks(x: Tensor, index: Tensor) -> Tensor:
    """Which values of ``x`` (B, V, T, H, W) are hidden; decided by the samples' numbers alone."""
    grid = [size // block for size, block in zip(x.shape[2:], BLOCK, strict=True)]
    valid = torch.ones(len(x), math.prod(grid), dtype=torch.bool)
    hidden = random_mask(valid, index, 0, None, HIDDEN).hidden.view(-1, 1, *grid)
    for axis, size in enumerate(BLOCK, start=2):
        hidden = hidden.repeat_interleave(size, axis)
    return hidden.expand_as(x)


@torch.no_grad()
def score(model: MaskedAutoencoder, dataset: FieldDataset) -> float:
    """RMSE of the first variable at the hidden blocks."""
    # The validation loss does not compare models: larger patches and higher ratios are harder.
    device = next(model.parameters()).device
    sums = torch.zeros(2, 1)
    ratio = model.mask_ratio
    model.mask_ratio = 0.0  # the blocks are NaN already: hide nothing more
    for x, index in DataLoader(dataset, 32):
        hidden = hidden_blocks(x, index)
        seen = x.masked_fill(hidden, math.nan)
        prediction = model(seen.to(device), index.to(device)).prediction
        weights = latitude_weights(dataset, index)
        sums = sums + squared_error(prediction.cpu(), x, hidden, weights)
    model.mask_ratio = ratio
    return to_scores(sums, dataset)[f"rmse_{dataset.variables[0]}"]


class Pruner(Recorder):
    """Reports the score after each epoch, and ends a trial that is worse than most were by then."""

    def __init__(self, trial: Any) -> None:
        super().__init__()
        self.trial = trial

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Score the model, and let Optuna decide."""
        if not trainer.sanity_checking:
            model = trainer.lightning_module.model
            self.score = score(model, trainer.datamodule.val_set)
            self.trial.report(self.score, trainer.current_epoch + 1)
            speed = (
                trainer.datamodule.batch_size * len(self.seconds) / sum(self.seconds)
            )
            self.trial.set_user_attr("samples_per_second", round(speed))
            if self.trial.should_prune():
                raise optuna.TrialPruned


def configure(trial: Any, overrides: list[str]) -> tuple[Any, str]:
    """The configuration of a training with these settings and the trial's, and the same as YAML."""
    searched = [f"--{key}={value}" for key, value in suggest(trial).items()]
    return parse_config(__doc__, [*overrides, *searched], *CLASSES)


def objective(trial: Any, overrides: list[str]) -> float:
    """Train with these settings and the trial's; returns the score."""
    config, _ = configure(trial, [SHORT, *overrides])
    return short_training(config, Pruner(trial)).score


def draw(trials: list[Any], folder: Path) -> None:
    """The trials' scores after each epoch; those that ended early are grey."""
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for trial in trials:
        name = f"trial {trial.number}"
        colour = None  # the next one
        if trial.state != TrialState.COMPLETE:
            name = "_"  # the legend leaves it out
            colour = "0.7"
        scores = trial.intermediate_values
        axis.plot(list(scores), list(scores.values()), "o-", label=name, color=colour)
    axis.plot([], [], "o", color="0.7", label="ended early")
    axis.set(xlabel="epoch", ylabel="error at the hidden blocks, in the field's unit")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend()
    figure.savefig(folder / "trials.png", dpi=150)


def report(study: Any, folder: Path, overrides: list[str]) -> None:
    """Table, pictures, and these settings with the best trial's, to train with.

    Raises UserError if no trial is complete.
    """
    if not study.get_trials(states=[TrialState.COMPLETE]):
        raise UserError(f"{os.path.relpath(folder)}: no trial is complete")
    table = study.trials_dataframe(
        attrs=("number", "value", "params", "user_attrs", "state")
    )
    table.columns = table.columns.str.replace("params_|user_attrs_", "", regex=True)
    table = table.sort_values(["state", "value"])  # complete trials first
    table.to_csv(folder / "trials.csv", index=False)
    print(table.to_string(index=False, float_format="{:.4g}".format))
    draw(study.trials, folder)
    optuna.visualization.matplotlib.plot_slice(study)
    plt.savefig(folder / "slice.png", dpi=150, bbox_inches="tight")
    _, best = configure(study.best_trial, overrides)
    (folder / "best.yaml").write_text(best)
    where = os.path.relpath(folder)
    print(f"look at {where}: trials.png, slice.png, trials.csv; to train the best:")
    print(f"  uv run python lightning_train.py -c {where}/best.yaml")


def main() -> None:
    """Search, or go on searching; report."""
    overrides = sys.argv[1:]
    # A typo ends here, and not as a failed trial.
    config, settings = parse_config(__doc__, overrides, *CLASSES)
    window = config.data.dataset("val").sample_shape[1:]
    if any(size % block for size, block in zip(window, BLOCK, strict=True)):
        raise UserError(f"study.py: BLOCK {BLOCK} has to divide the window {window}")
    folder = results_folder(f"study/{NAME}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/study.db",
        study_name=NAME,
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    # Scores of other data, or of a longer training, cannot be ranked with these.
    if study.user_attrs.get("settings", settings) != settings:
        raise UserError(f"study {NAME} has other settings: write another NAME")
    study.set_user_attr("settings", settings)
    # FIRST and four random ones (its default is ten); then those so far decide. Seeded by the
    # number of trials: with one seed, a search that goes on would draw the same ones again.
    seed = len(study.trials)
    study.sampler = optuna.samplers.TPESampler(n_startup_trials=5, seed=seed)
    # Also if the first one was killed, which stays RUNNING.
    if all(trial.state == TrialState.RUNNING for trial in study.trials):
        study.enqueue_trial(FIRST)
    # A training that diverges, or is too large for the GPU, fails; the search goes on.
    study.optimize(
        lambda trial: objective(trial, overrides),
        n_trials=TRIALS,
        catch=(UserError, torch.OutOfMemoryError),
        show_progress_bar=True,
    )
    report(study, folder, overrides)


if __name__ == "__main__":
    with one_line_errors():
        main()
