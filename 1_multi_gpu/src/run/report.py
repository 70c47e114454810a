"""The end of a run: scores beside the baselines, on the screen, in summary.json and as pictures."""

import json
import os
import random

from torch import nn
from torch.utils.data import DataLoader

from src.data.pytorch_dataset import FieldDataset
from src.run.evaluation import evaluate, evaluate_baselines
from src.run.tracking import Tracker

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
    samples = samples_to_score(len(dataset))
    loader = DataLoader(dataset, batch_size=32, sampler=samples)
    scores = {"masked autoencoder": evaluate(model, loader)}
    scores |= evaluate_baselines(model, loader)

    note = "hidden values only"
    if len(samples) < len(dataset):
        note += f", {len(samples)} of {len(dataset)} windows"
    for variable, unit in zip(dataset.variables, dataset.units, strict=True):
        print(f"validation RMSE of {variable} ({unit}), {note}")
        for name, metrics in scores.items():
            print(f"  {name:<24}{metrics[f'rmse_{variable}']:8.3f}")
    summary = {"step": step, "validation": scores}
    (tracker.folder / "summary.json").write_text(json.dumps(summary, indent=2))
    tracker.tell_wandb(lambda: tracker.run.summary.update(scores))

    files = "metrics.csv, summary.json"
    if with_pictures:
        draw(model, dataset, tracker, step, scores)
        files = f"curves.png, reconstructions.png, {files}"
    print(f"look at {os.path.relpath(tracker.folder)}: {files}")


def samples_to_score(num_samples: int) -> list[int]:
    """The numbers of at most MOST_SAMPLES samples, the same ones in each run."""
    # Drawn, because every n-th one may always come from the same columns of the map.
    number = min(num_samples, MOST_SAMPLES)
    return sorted(random.Random(0).sample(range(num_samples), number))


def draw(
    model: nn.Module, dataset: FieldDataset, tracker: Tracker, step: int, scores: dict
) -> None:
    """Draw reconstructions and curves; final ``scores`` add the baselines."""
    # Imported here, because the first step need not wait for matplotlib.
    from src.run.plots import plot_curves, plot_reconstructions

    tracker.log_picture(step, plot_reconstructions(model, dataset, tracker.folder))
    tracker.log_picture(step, plot_curves(tracker.folder, dataset, scores))
