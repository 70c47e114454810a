"""Validation in physical units, and three baselines that need no training."""

# B batch, V variables, T times, H latitudes, W longitudes.

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from src.data.pytorch_dataset import FieldDataset
from src.errors import UserError

# (x, index, hidden) -> a guess for every element of x, all (B, V, T, H, W)
Guess = Callable[[Tensor, Tensor, Tensor], Tensor]


def squared_error(guess: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
    """Sum and number of the squared errors at hidden, valid elements of each variable: (2, V)."""
    scored = hidden & ~torch.isnan(x)
    error = torch.where(scored, guess - x, 0.0).double().square()
    return torch.stack(
        [values.sum(dim=(0, 2, 3, 4)) for values in (error, scored.double())]
    )


def to_scores(sums: Tensor, dataset: FieldDataset) -> dict[str, float]:
    """Normalised loss, each variable's RMSE in its units. Raises UserError if one is no number."""
    # The sums (2, V) are divided at the end. Batches differ in how much land they have, and the
    # mean of their means is not the mean of all values.
    total, count = sums
    rmse = (total / count).sqrt() * torch.as_tensor(dataset.std)
    # A NaN is never below the best loss: the run would go on, and keep an old best checkpoint.
    if not torch.isfinite(rmse).all():
        raise UserError(f"validation RMSE {rmse.tolist()} of {list(dataset.variables)}")
    names = ["val_loss", *(f"rmse_{name}" for name in dataset.variables)]
    values = torch.stack([total.sum() / count.sum(), *rmse])
    # float32, because the logging of chapter 1 keeps no more digits.
    return dict(zip(names, values.float().tolist(), strict=True))


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: DataLoader, baselines: Mapping[str, Guess]
) -> dict[str, Tensor]:
    """The sums of ``squared_error`` over all samples, of the model and of ``baselines``."""
    batch_sums, device = defaultdict(list), next(model.parameters()).device
    model.eval()
    # A bar for the baselines, which take some seconds; none in a log file (disable=None).
    for x, index in tqdm(
        loader, "scoring", leave=False, disable=None if baselines else True
    ):
        # Without an epoch, the masks depend on the sample alone: all epochs and runs compare.
        output = model(x.to(device), index.to(device))
        # To the CPU: Apple GPUs have no float64, and the baselines run there.
        prediction, hidden = output.prediction.cpu(), output.hidden.cpu()
        batch_sums["masked autoencoder"].append(squared_error(prediction, x, hidden))
        for name, guess in baselines.items():
            batch_sums[name].append(squared_error(guess(x, index, hidden), x, hidden))
    model.train()
    # From a tensor, which broadcasts to (2, V): sum() alone would begin with the number 0.
    return {name: sum(batch_sums[name], torch.zeros(2, 1)) for name in batch_sums}


def make_baselines(dataset: FieldDataset) -> dict[str, Guess]:
    """The baselines by name; a dataset without a calendar has no climatology."""
    guesses: dict[str, Guess] = {
        "inverse distance": inverse_distance,
        "visible mean": visible_mean,
    }
    if climatology := getattr(dataset, "climatology", None):
        # 0, the training mean, where a place has no value in that calendar month.
        guesses["climatology"] = lambda x, index, hidden: torch.stack(
            [climatology(i) for i in index.tolist()]
        ).nan_to_num()
    return guesses


def visible_mean(x: Tensor, index: Tensor, hidden: Tensor) -> Tensor:
    """The mean of the sample's visible values; 0, the training mean, where nothing is visible."""
    return (
        x.where(~hidden, torch.nan)
        .nanmean((2, 3, 4), keepdim=True)
        .nan_to_num()
        .expand_as(x)
    )


def inverse_distance(x: Tensor, index: Tensor, hidden: Tensor) -> Tensor:
    """Interpolate the 12 nearest visible points with weights 1 / distance**2 (Shepard 1968)."""
    from scipy.spatial import (
        KDTree,
    )  # here, because the first step need not wait for the import

    # A month counts as four grid points: it changes the ocean more than a step of the grid does.
    scale = np.array([4.0, 1.0, 1.0])
    guess, valid = torch.zeros_like(x), ~torch.isnan(x)
    for sample, variable in np.ndindex(x.shape[:2]):
        field = x[sample, variable].numpy()
        scored = (valid & hidden)[sample, variable].numpy()
        visible = (valid & ~hidden)[sample, variable].numpy()
        if not scored.any() or not visible.any():
            continue
        tree = KDTree(np.argwhere(visible) * scale)
        # As a list: with the number 1, for a single visible point, the result has one axis less.
        neighbours = np.arange(1, min(12, tree.n) + 1)
        distance, nearest = map(
            np.asarray, tree.query(np.argwhere(scored) * scale, neighbours)
        )
        weight = distance**-2
        value = (weight * field[visible][nearest]).sum(axis=1) / weight.sum(axis=1)
        guess[sample, variable][torch.from_numpy(scored)] = torch.from_numpy(
            value
        ).float()
    return guess
