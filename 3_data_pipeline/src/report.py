"""The end of a run: scores beside the baselines, on the screen, in summary.json and as pictures."""

import json
import math
import os

from torch import nn
from torch.utils.data import DataLoader

from src.data.pytorch_dataset import FieldDataset
from src.evaluation import evaluate, evaluate_baselines
from src.tracking import Tracker

# So that the report ends within minutes, however large the data are.
MOST_SAMPLES = 1000


def report(
    model: nn.Module,
    dataset: FieldDataset,
    tracker: Tracker,
    step: int,
    with_pictures: bool,
) -> None:
    """Score the model and the baselines in physical units; print, write and draw the scores."""
    every = math.ceil(len(dataset) / MOST_SAMPLES)
    samples = range(0, len(dataset), every)
    loader = DataLoader(dataset, batch_size=32, sampler=samples)
    scores = {"masked autoencoder": evaluate(model, loader)}
    scores |= evaluate_baselines(model, loader)

    note = f", {len(samples)} of {len(dataset)} windows" if every > 1 else ""
    for variable, unit in zip(dataset.variables, dataset.units, strict=True):
        print(f"validation RMSE of {variable} ({unit}), hidden values only{note}")
        for name, metrics in scores.items():
            print(f"  {name:<20}{metrics[f'rmse_{variable}']:8.3f}")
    summary = {"step": step, "validation": scores}
    (tracker.folder / "summary.json").write_text(json.dumps(summary, indent=2))
    tracker.run.summary.update(scores)

    files = "metrics.csv, summary.json"
    if with_pictures:
        draw(model, dataset, tracker, step, scores)
        files = f"curves.png, reconstructions.png, {files}"
    print(f"look at {os.path.relpath(tracker.folder)}: {files}")


def draw(
    model: nn.Module, dataset: FieldDataset, tracker: Tracker, step: int, scores: dict
) -> None:
    """Draw reconstructions and curves; final ``scores`` add the baselines."""
    # Imported here, because the first step need not wait for matplotlib.
    from src.plots import plot_curves, plot_reconstructions

    tracker.log_picture(step, plot_reconstructions(model, dataset, tracker.folder))
    tracker.log_picture(step, plot_curves(tracker.folder, dataset, scores))
