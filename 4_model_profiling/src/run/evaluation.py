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
        index = index.to(device)
        output = model(x, index)
        weights = latitude_weights(loader.dataset, index)
        sums = sums + squared_error(output.prediction, x, output.hidden, weights).cpu()
    model.train()
    return sums


def squared_error(guess: Tensor, x: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
    """Weighted squared errors at hidden, valid elements, and their weights: sums (2, V)."""
    scored = hidden & ~torch.isnan(x)
    error = torch.where(scored, guess - x, 0.0)
    if error.device.type == "mps":  # Apple GPUs have no float64
        error, scored, weights = error.cpu(), scored.cpu(), weights.cpu()
    axes = (0, 2, 3, 4)
    error = error.double().square() * weights
    return torch.stack([error.sum(axes), (scored * weights.double()).sum(axes)])


def latitude_weights(dataset: Any, index: Tensor) -> Tensor:
    """The cosine of each latitude of these samples (B, 1, 1, H, 1), or 1 for all.

    On a grid of degrees, the area of a cell shrinks with the cosine towards the poles. Without
    weights, the many small cells there would decide the score. WeatherBench 2 takes the area of
    each cell (https://arxiv.org/abs/2308.15560), which differs from it at the poles alone.
    """
    grid = getattr(dataset, "grid", None)
    # Images have no latitudes.
    if grid is None or not grid.has_degrees:
        return torch.ones((), device=index.device)
    cosine = np.cos(np.deg2rad(grid.lat))
    # In a narrow band the weights differ too little to matter, and a score is easier to compare
    # without them.
    if cosine.min() > 0.9 * cosine.max():
        return torch.ones((), device=index.device)

    # Samples are numbered along time, latitude, longitude. Computed where `index` lies: a GPU is
    # not asked for its numbers.
    _, latitudes, longitudes = grid.starts
    number = index // len(longitudes) % len(latitudes)
    rows = torch.arange(grid.window[1], device=index.device)
    rows = rows + number[:, None] * latitudes.step
    weights = torch.as_tensor(cosine, dtype=torch.float32)
    # On Apple's GPUs the copy has to wait: its source may be gone before.
    is_cuda = index.device.type == "cuda"
    weights = weights.to(index.device, non_blocking=is_cuda)
    return weights[rows][:, None, None, :, None]


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
        weights = latitude_weights(dataset, index)
        for name, guess in guesses.items():
            error = squared_error(guess(x, index, hidden), x, hidden, weights)
            sums[name] = sums[name] + error
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
