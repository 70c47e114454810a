"""Validation in physical units, and baselines that need no training.

B batch, V variables, T times, H latitudes, W longitudes.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pykdtree.kdtree import KDTree
from torch import Tensor, nn
from torch.utils.data import DataLoader

from src.data.loaders import Loaders
from src.data.pytorch_dataset import FieldDataset
from src.model.pytorch_model import Output
from src.run.errors import UserError

# So that the report ends within minutes, however large the data are.
MOST_SAMPLES = 1000
Scores = dict[str, float]


def evaluate(model: nn.Module, loader: DataLoader) -> Scores:
    """The model's validation loss, and its RMSE of each variable in the variable's units."""
    return to_scores(model_errors(model, loader), loader.dataset)


def model_errors(model: nn.Module, loader: DataLoader) -> Tensor:
    """The sums of ``squared_errors`` over all samples: (2, V)."""
    dataset: Any = loader.dataset
    sums = torch.zeros(2, len(dataset.variables), dtype=torch.float64)
    for x, index in loader:
        output = reconstruct(model, x, index)
        area = dataset.cell_area(index)
        sums += squared_errors(output.prediction, x, output.hidden, area)
    return sums


@torch.no_grad()
def reconstruct(model: nn.Module, x: Tensor, index: Tensor) -> Output:
    """The model's output for a batch of validation samples, on the CPU."""
    device = next(model.parameters()).device
    model.eval()
    # Without an epoch, the masks depend on the sample alone: all epochs and runs compare.
    output = model(x.to(device), index.to(device))
    model.train()
    return Output(*(tensor.cpu() for tensor in output))


def squared_errors(guess: Tensor, x: Tensor, hidden: Tensor, area: Tensor) -> Tensor:
    """Squared errors at hidden, valid elements, and their weights: sums of each variable (2, V).

    The weights are the ``area`` of a cell (B, H): on a grid of degrees, the many small cells near
    the poles would otherwise decide the score. The others are (B, V, T, H, W). All are on the CPU:
    Apple's GPUs have no float64.
    """
    scored = hidden & ~x.isnan()
    weight = scored * area[:, None, None, :, None].double()
    error = torch.where(scored, guess - x, 0.0).double().square()
    axes = (0, 2, 3, 4)
    return torch.stack([(error * weight).sum(axes), weight.sum(axes)])


def to_scores(sums: Tensor, dataset: Any) -> Scores:
    """Validation loss (normalised), and each variable's RMSE in its units.

    Raises:
        UserError: the loss is no number.
    """
    # The sums are divided at the end: batches differ in how much land they have, and the mean of
    # their means is not the mean of all values.
    error, weight = sums
    # float32, because the logging of chapter 1 keeps no more digits.
    loss = (error.sum() / weight.sum()).float().item()
    # A NaN is never below the best loss: the run would go on, and keep an old best checkpoint.
    if not math.isfinite(loss):
        raise UserError(f"the validation loss is {loss}")
    scores = {"val_loss": loss}
    rmse = (error / weight).sqrt() * torch.as_tensor(dataset.std)
    for variable, value in zip(dataset.variables, rmse.float().tolist(), strict=True):
        scores[f"rmse_{variable}"] = value
    return scores


def as_text(scores: Scores) -> str:
    """The scores on one line."""
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


def evaluate_guesses(model: nn.Module, loader: DataLoader) -> dict[str, Scores]:
    """The scores of the model and of guesses without training, at the same hidden values."""
    dataset: Any = loader.dataset
    sums: dict[str, Any] = {}
    for x, index in loader:
        output = reconstruct(model, x, index)
        hidden = output.hidden
        guesses = {
            "masked autoencoder": output.prediction,
            "inverse distance": inverse_distance(x, hidden),
        }
        if hasattr(dataset, "climatology"):  # a dataset without a calendar has none
            season = torch.stack([dataset.climatology(i) for i in index.tolist()])
            # 0 is the training mean, for a place that never has a value.
            season = season.nan_to_num()
            guesses["climatology"] = season
            # What is left without the season is smoother than the field itself.
            anomalies = inverse_distance(x - season, hidden)
            guesses["interpolated anomalies"] = season + anomalies
        area = dataset.cell_area(index)
        for name, guess in guesses.items():
            sums[name] = sums.get(name, 0) + squared_errors(guess, x, hidden, area)
    return {name: to_scores(sums[name], dataset) for name in sums}


def inverse_distance(x: Tensor, hidden: Tensor) -> Tensor:
    """Interpolate the 12 nearest visible points with weights 1 / distance**2 (Shepard 1968).

    Where fewer are visible, the guess is 0, the training mean.
    """
    # A month counts as four grid points: it changes the ocean more than a step of the grid does.
    scale = np.array([4.0, 1.0, 1.0])
    visible = ~hidden & ~x.isnan()
    asked = hidden & ~x.isnan()
    guess = torch.zeros_like(x)
    for field in np.ndindex(*x.shape[:2]):  # sample, variable
        if visible[field].sum() < 12 or not asked[field].any():
            continue
        tree = KDTree(visible[field].nonzero().numpy() * scale)
        points = asked[field].nonzero().numpy() * scale
        distance, nearest = tree.query(points, 12)
        weight = torch.from_numpy(distance**-2)
        neighbours = x[field][visible[field]][nearest.astype(int)]
        weighted_sum = (weight * neighbours).sum(1)
        guess[field][asked[field]] = (weighted_sum / weight.sum(1)).float()
    return guess


def report(model: nn.Module, loaders: Loaders, folder: Path) -> dict[str, Scores]:
    """Score the model beside the baselines: print the scores, and write them to summary.json.

    The model has the weights of the best checkpoint. The validation has chosen it, so its score
    there is a little too good; a test period is scored here alone.

    Returns:
        The validation's scores.
    """
    scores = score(model, loaders, loaders.val_set, "validation")
    summary = {"validation": scores}
    if loaders.test_set:
        summary["test"] = score(model, loaders, loaders.test_set, "test")
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
    return scores


def score(
    model: nn.Module, loaders: Loaders, dataset: FieldDataset, name: str
) -> dict[str, Scores]:
    """Print and return the scores of the model and of the baselines on a dataset."""
    number = min(len(dataset), MOST_SAMPLES)
    samples = np.linspace(0, len(dataset) - 1, number, dtype=int).tolist()
    loader = loaders.in_order(dataset, samples)
    scores = evaluate_guesses(model, loader)
    for variable, unit in zip(dataset.variables, dataset.units, strict=True):
        print(f"{name} RMSE of {variable} ({unit}), hidden values of {number} windows")
        for guess, metrics in scores.items():
            print(f"  {guess:<24}{metrics[f'rmse_{variable}']:8.3f}")
    return scores
