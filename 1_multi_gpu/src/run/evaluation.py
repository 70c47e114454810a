"""Validation in physical units, and baselines that need no training.

B batch, V variables, T times, H latitudes, W longitudes.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from src.data.pytorch_dataset import FieldDataset
from src.run.errors import UserError


def evaluate(model: nn.Module, loader: DataLoader) -> dict[str, float]:
    """The model's validation loss, and its RMSE of each variable in the variable's units."""
    dataset: Any = loader.dataset
    return to_scores(error_sums(model, loader), dataset)


@torch.no_grad()
def error_sums(model: nn.Module, loader: DataLoader) -> Tensor:
    """The sums of ``squared_error`` over all samples: (2, V)."""
    device = next(model.parameters()).device
    sums = torch.zeros(2, 1)  # the first batch makes it (2, V)
    model.eval()
    for x, index in loader:
        x = x.to(device)
        # Without an epoch, the masks depend on the sample alone: all epochs and runs compare.
        output = model(x, index.to(device))
        sums = sums + squared_error(output.prediction, x, output.hidden).cpu()
    model.train()
    return sums


def squared_error(guess: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
    """Sum and number of the squared errors at hidden, valid elements of each variable: (2, V)."""
    scored = hidden & ~torch.isnan(x)
    error = torch.where(scored, guess - x, 0.0)
    if error.device.type == "mps":  # Apple GPUs have no float64
        error, scored = error.cpu(), scored.cpu()
    axes = (0, 2, 3, 4)
    return torch.stack([error.double().square().sum(axes), scored.double().sum(axes)])


def to_scores(sums: Tensor, dataset: FieldDataset) -> dict[str, float]:
    """Validation loss (normalised), and each variable's RMSE in its units.

    Raises:
        UserError: one of them is no number.
    """
    # The sums are divided at the end: batches differ in how much land they have, and the mean of
    # their means is not the mean of all values.
    error, count = sums
    loss = error.sum() / count.sum()
    rmse = (error / count).sqrt() * torch.as_tensor(dataset.std)
    # A NaN is never below the best loss: the run would go on, and keep an old best checkpoint.
    if not torch.isfinite(rmse).all():
        raise UserError(f"validation RMSE {rmse.tolist()} of {list(dataset.variables)}")

    # float32, because the logging of chapter 1 keeps no more digits.
    scores = {"val_loss": loss.float().item()}
    for variable, value in zip(dataset.variables, rmse.float().tolist(), strict=True):
        scores[f"rmse_{variable}"] = value
    return scores


@torch.no_grad()
def evaluate_baselines(
    model: nn.Module, loader: DataLoader
) -> dict[str, dict[str, float]]:
    """The scores of guesses without training, at the values that are hidden from the model."""
    dataset: Any = loader.dataset
    # From (x, index, hidden) to a guess for every element of x, all (B, V, T, H, W).
    guesses: dict[str, Any] = {
        "inverse distance": inverse_distance,
        "visible mean": visible_mean,
    }
    if hasattr(dataset, "climatology"):  # a dataset without a calendar has none

        def climatology(x: Tensor, index: Tensor, hidden: Tensor) -> Tensor:
            guess = torch.stack([dataset.climatology(i) for i in index.tolist()])
            # 0 is the training mean, for a place that never has a value.
            return guess.nan_to_num()

        def interpolated_anomalies(x: Tensor, index: Tensor, hidden: Tensor) -> Tensor:
            # What is left without the season is smoother than the field itself.
            season = climatology(x, index, hidden)
            return season + inverse_distance(x - season, index, hidden)

        guesses["climatology"] = climatology
        guesses["interpolated anomalies"] = interpolated_anomalies

    device = next(model.parameters()).device
    sums = dict.fromkeys(guesses, torch.zeros(2, 1))
    model.eval()
    for x, index in loader:
        hidden = model(x.to(device), index.to(device)).hidden.cpu()
        for name, guess in guesses.items():
            sums[name] = sums[name] + squared_error(guess(x, index, hidden), x, hidden)
    model.train()
    return {name: to_scores(sums[name], dataset) for name in guesses}


def visible_mean(x: Tensor, index: Tensor, hidden: Tensor) -> Tensor:
    """The mean of the sample's visible values; 0, the training mean, where nothing is visible."""
    mean = x.where(~hidden, torch.nan).nanmean((2, 3, 4), keepdim=True)
    return mean.nan_to_num().expand_as(x)


def inverse_distance(x: Tensor, index: Tensor, hidden: Tensor) -> Tensor:
    """Interpolate the 12 nearest visible points with weights 1 / distance**2 (Shepard 1968)."""
    # Imported here: the first step need not wait for it.
    from pykdtree.kdtree import KDTree

    # A month counts as four grid points: it changes the ocean more than a step of the grid does.
    scale = np.array([4.0, 1.0, 1.0])
    guess = torch.zeros_like(x)
    valid = ~torch.isnan(x)
    for sample, variable in np.ndindex(x.shape[:2]):
        field = x[sample, variable].numpy()
        scored = (valid & hidden)[sample, variable].numpy()
        visible = (valid & ~hidden)[sample, variable].numpy()
        if not scored.any() or not visible.any():
            continue
        tree = KDTree(np.argwhere(visible) * scale)
        count = min(12, visible.sum())
        distance, nearest = tree.query(np.argwhere(scored) * scale, count)
        # For a single visible point, the results have one axis less.
        weight = distance.reshape(-1, count) ** -2
        neighbours = field[visible][nearest].reshape(-1, count)
        total = (weight * neighbours).sum(axis=1)
        guess.numpy()[sample, variable][scored] = total / weight.sum(axis=1)
    return guess
