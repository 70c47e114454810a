"""Validation in physical units, beside three baselines that need no training.

A loss says little. An error in kelvin, beside the error of a climatology, says what the model is
good for.

Shapes: B batch, V variables, T times, H latitudes, W longitudes; N points.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from src.data.pytorch_dataset import FieldDataset
from src.errors import UserError
from src.model.pytorch_model import Output

# (x, index, hidden) -> a guess for every element of x, all (B, V, T, H, W)
Guess = Callable[[Tensor, Tensor, Tensor], Tensor]


class SquaredError:
    """Accumulates squared errors per variable over batches, in float64."""

    def __init__(self, dataset: FieldDataset) -> None:
        self.dataset = dataset
        self.total = torch.zeros(len(dataset.variables), dtype=torch.float64)
        self.count = torch.zeros(len(dataset.variables), dtype=torch.int64)

    def update(self, guess: Tensor, x: Tensor, hidden: Tensor) -> None:
        """Add the hidden, valid elements of a batch (B, V, T, H, W)."""
        scored = hidden & ~torch.isnan(x)
        # To the CPU first: Apple GPUs have no float64.
        error = torch.where(scored, guess - x, 0.0).cpu().double().square()
        self.total += error.sum(dim=(0, 2, 3, 4))
        self.count += scored.sum(dim=(0, 2, 3, 4)).cpu()

    def rmse(self) -> dict[str, float]:
        """Root mean squared error of each variable, in its own units."""
        normalised = (self.total / self.count).sqrt().numpy()
        physical = (normalised * self.dataset.std).tolist()
        return {
            f"rmse_{name}": value
            for name, value in zip(self.dataset.variables, physical, strict=True)
        }


def dataset_of(loader: DataLoader) -> FieldDataset:
    """The loader's dataset, which knows names and units; PyTorch's type for it promises nothing."""
    assert isinstance(loader.dataset, FieldDataset)
    return loader.dataset


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: torch.device) -> dict[str, float]:
    """Loss and RMSE over all samples of ``loader``, with the masks that belong to them."""
    model.eval()
    error = SquaredError(dataset_of(loader))
    total, count = 0.0, 0
    for x, index in loader:
        x, index = x.to(device), index.to(device)
        output: Output = model(x, index)
        total, count = total + output.squared_error.item(), count + int(output.valid_count)
        error.update(output.prediction, x, output.hidden)
    model.train()
    scores = {"val_loss": total / max(1, count), **error.rmse()}
    # A NaN here would never compare as better or worse, and so decide what the best checkpoint is.
    if not all(np.isfinite(list(scores.values()))):
        raise UserError(f"validation gave {scores}; is every variable valid somewhere, and finite?")
    return scores


@torch.no_grad()
def score_baselines(
    model: nn.Module, loader: DataLoader, device: torch.device
) -> dict[str, dict[str, float]]:
    """RMSE of each baseline and variable on exactly the elements that ``model`` is scored on."""
    dataset = dataset_of(loader)
    guesses = baselines(dataset)
    errors = {name: SquaredError(dataset) for name in guesses}
    model.eval()
    for x, index in tqdm(loader, desc="scoring baselines", unit="batch", leave=False):
        # The baselines run on the CPU; the masks are the same on every device.
        hidden = model(x.to(device), index.to(device)).hidden.cpu()
        for name, guess in guesses.items():
            errors[name].update(guess(x, index, hidden), x, hidden)
    model.train()
    return {name: error.rmse() for name, error in errors.items()}


def baselines(dataset: FieldDataset) -> dict[str, Guess]:
    """The baselines by name; without a calendar there is no climatology."""
    guesses: dict[str, Guess] = {"inverse distance": inverse_distance, "visible mean": visible_mean}
    if dataset.climatology(0) is not None:
        guesses["climatology"] = lambda x, index, hidden: climatology(dataset, index)
    return guesses


def visible_mean(x: Tensor, index: Tensor, hidden: Tensor) -> Tensor:
    """The mean of the sample's visible values; 0, the training mean, where nothing is visible."""
    visible = x.masked_fill(hidden, torch.nan)
    return visible.nanmean(dim=(2, 3, 4), keepdim=True).nan_to_num().expand_as(x)


def climatology(dataset: FieldDataset, index: Tensor) -> Tensor:
    """The training months' mean for this place and calendar month; 0 where they have no value."""
    samples = [dataset.climatology(i) for i in index.tolist()]
    return torch.stack([sample for sample in samples if sample is not None]).nan_to_num()


def inverse_distance(
    x: Tensor, index: Tensor, hidden: Tensor, neighbours: int = 12, month: float = 4.0
) -> Tensor:
    """Interpolate the visible points with weights 1 / distance**2 (Shepard 1968).

    A step of one month counts as ``month`` grid points, since a month changes the ocean more than a
    step of half a degree does.
    """
    from scipy.spatial import KDTree  # here, because the first step need not wait for the import

    scale = np.array([month, 1.0, 1.0])
    guess = torch.zeros_like(x)
    valid = ~torch.isnan(x)
    for sample, variable in np.ndindex(x.shape[0], x.shape[1]):
        field = x[sample, variable].numpy()
        scored = (valid & hidden)[sample, variable].numpy()
        seen = (valid & ~hidden)[sample, variable].numpy()
        if not scored.any() or not seen.any():
            continue
        tree = KDTree(np.argwhere(seen) * scale)
        ranks = np.arange(1, min(neighbours, tree.n) + 1)
        found = tree.query(np.argwhere(scored) * scale, ranks)
        distance, nearest = np.asarray(found[0]), np.asarray(found[1])
        weight = distance**-2
        value = (weight * field[seen][nearest]).sum(axis=1) / weight.sum(axis=1)
        guess[sample, variable][torch.from_numpy(scored)] = torch.from_numpy(value).to(x.dtype)
    return guess
