"""What a run shows for itself: scores beside the baselines, a summary, pictures."""

import json
from collections.abc import Mapping

import torch
from torch import nn
from torch.utils.data import DataLoader

from src.data.pytorch_dataset import FieldDataset
from src.evaluation import dataset_of, score_baselines, validate
from src.tracking import Tracker, package_versions


def report(
    model: nn.Module, loader: DataLoader, device: torch.device, tracker: Tracker, step: int
) -> None:
    """Score the model and the baselines in physical units, and publish the scores."""
    scores = {"masked autoencoder": validate(model, loader, device)}
    scores |= score_baselines(model, loader, device)
    publish(scores, model, dataset_of(loader), device, tracker, step)


def publish(
    scores: Mapping[str, Mapping[str, float]],
    model: nn.Module,
    dataset: FieldDataset,
    device: torch.device,
    tracker: Tracker,
    step: int,
) -> None:
    """Print the scores, write them, draw them."""
    summary = {"step": step, "validation": scores, "versions": package_versions()}
    (tracker.folder / "summary.json").write_text(json.dumps(summary, indent=2))
    for variable, unit in zip(dataset.variables, dataset.units, strict=True):
        print(f"validation RMSE of {variable} ({unit}), hidden values only")
        for name, metrics in scores.items():
            print(f"  {name:<20}{metrics[f'rmse_{variable}']:8.3f}")
    tracker.summarise(scores)
    draw(model, dataset, device, tracker, step, scores)


def draw(
    model: nn.Module,
    dataset: FieldDataset,
    device: torch.device,
    tracker: Tracker,
    step: int,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draw reconstructions and curves; final ``scores`` add the baselines."""
    # Imported here, because the first step need not wait for matplotlib.
    from src.plots import plot_curves, plot_reconstructions

    tracker.show(step, plot_reconstructions(model, dataset, device, tracker.folder))
    tracker.show(step, plot_curves(tracker.folder, scores or {}, dataset))
