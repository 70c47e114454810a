"""The end of a run: scores beside the baselines, on the screen, in summary.json and as pictures."""

import json
import os

from torch import nn
from torch.utils.data import DataLoader

from src.data.pytorch_dataset import FieldDataset
from src.evaluation import evaluate, make_baselines, to_scores
from src.tracking import Tracker


def report(
    model: nn.Module, dataset: FieldDataset, tracker: Tracker, step: int
) -> None:
    """Score the model and the baselines in physical units; print, write and draw the scores."""
    sums = evaluate(model, DataLoader(dataset, batch_size=32), make_baselines(dataset))
    scores = {name: to_scores(sums[name], dataset) for name in sums}
    for variable, unit in zip(dataset.variables, dataset.units, strict=True):
        print(f"validation RMSE of {variable} ({unit}), hidden values only")
        for name, metrics in scores.items():
            print(f"  {name:<20}{metrics[f'rmse_{variable}']:8.3f}")
    summary = json.dumps({"step": step, "validation": scores}, indent=2)
    (tracker.folder / "summary.json").write_text(summary)
    tracker.run.summary.update(scores)
    draw(model, dataset, tracker, step, scores)
    folder = os.path.relpath(tracker.folder)
    print(
        f"look at {folder}: curves.png, reconstructions.png, metrics.csv, summary.json"
    )


def draw(
    model: nn.Module, dataset: FieldDataset, tracker: Tracker, step: int, scores: dict
) -> None:
    """Draw reconstructions and curves; final ``scores`` add the baselines."""
    # Imported here, because the first step need not wait for matplotlib.
    from src.plots import plot_curves, plot_reconstructions

    tracker.show(step, plot_reconstructions(model, dataset, tracker.folder))
    tracker.show(step, plot_curves(tracker.folder, dataset, scores))
