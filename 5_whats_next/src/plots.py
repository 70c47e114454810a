"""Pictures: what the model saw, what it made of it, and how the error fell."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

from src.data.pytorch_dataset import FieldDataset

PANELS = (
    "truth",
    "what the model saw",
    "reconstruction, visible patches pasted in",
    "error",
)


def non_overlapping(dataset: FieldDataset) -> list[int]:
    """Up to 16 samples of the first one's months that do not overlap on the map."""
    samples: list[int] = []
    covered: set[tuple[float, float]] = set()
    first_time = dataset.coordinates(0)[0][0]
    for sample in range(len(dataset)):
        time, lat, lon = dataset.coordinates(sample)
        points = set(itertools.product(lat, lon))
        if time[0] != first_time or len(samples) == 16:
            break  # samples are in the order of time, and there may be millions
        if not points & covered:
            samples.append(sample)
            covered |= points
    return samples


@torch.no_grad()
def reconstruct(
    model: nn.Module, dataset: FieldDataset, samples: list[int]
) -> np.ndarray:
    """The four panels in physical units: (4, samples, V, T, H, W)."""
    x, index = torch.stack([dataset[i][0] for i in samples]), torch.tensor(samples)
    device = next(model.parameters()).device
    model.eval()
    output = model(x.to(device), index.to(device))
    model.train()
    hidden = output.hidden.cpu()
    # Visible patches are pasted back: nobody asked the model to predict them. Land stays land.
    restored = torch.where(hidden, output.prediction.cpu(), x).masked_fill(
        x.isnan(), torch.nan
    )
    std, mean = (a[:, None, None, None] for a in (dataset.std, dataset.mean))
    fields = (x, x.masked_fill(hidden, torch.nan), restored)
    truth, visible, restored = (field.numpy() * std + mean for field in fields)
    return np.stack([truth, visible, restored, restored - truth])


def plot_reconstructions(model: nn.Module, dataset: FieldDataset, folder: Path) -> Path:
    """Maps of the first variable at the windows' middle month, made of all windows that fit."""
    samples = non_overlapping(dataset)
    panels = reconstruct(model, dataset, samples)[:, :, 0]
    panels = panels[:, :, panels.shape[2] // 2]  # (4, samples, H, W)
    low, high, largest = (
        np.nanmin(panels[0]),
        np.nanmax(panels[0]),
        np.nanmax(np.abs(panels[3])),
    )
    figure = Figure(figsize=(12, 5.6), layout="constrained")
    for axis, fields, title in zip(
        figure.subplots(4, sharex=True), panels, PANELS, strict=True
    ):
        colours = {"cmap": "viridis", "vmin": low, "vmax": high}
        if title == "error":
            colours = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
        for sample, field, truth in zip(samples, fields, panels[0], strict=True):
            _, lat, lon = dataset.coordinates(sample)
            mesh = axis.pcolormesh(lon, lat, field, **colours)
            # Hidden values stay white, land is grey.
            land = np.where(np.isnan(truth), 0.7, np.nan)
            axis.pcolormesh(lon, lat, land, cmap="gray", vmin=0, vmax=1)
        figure.colorbar(mesh, ax=axis, pad=0.01)
        axis.set(title=title)
    figure.suptitle(
        f"{dataset.variables[0]} ({dataset.units[0]}); grey: no value (land or a gap)"
    )
    figure.savefig(folder / "reconstructions.png", dpi=110)
    return folder / "reconstructions.png"


def plot_curves(folder: Path, dataset: FieldDataset, scores: dict) -> Path:
    """Loss over the steps, and the validation error of the first variable beside the baselines."""
    variable, unit = dataset.variables[0], dataset.units[0]
    rows = pd.read_csv(folder / "metrics.csv", index_col="step")
    # A short run may have no row of training metrics.
    rows = rows.reindex(columns=["train_loss", "val_loss", f"rmse_{variable}"])
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.semilogy(rows["train_loss"].dropna(), label="training, one batch", alpha=0.6)
    left.semilogy(rows["val_loss"].dropna(), "o-", label="validation")
    left.set(xlabel="step", ylabel="mean squared error (normalised)")
    right.plot(
        rows[f"rmse_{variable}"].dropna(), "o-", color="C1", label="masked autoencoder"
    )
    for number, name in enumerate(
        list(scores)[1:], start=2
    ):  # the first one is the model's
        error = scores[name][f"rmse_{variable}"]
        right.axhline(error, linestyle="--", color=f"C{number}", label=name)
    right.set(xlabel="step", ylabel=f"validation RMSE of {variable} ({unit})")
    right.set_ylim(bottom=0)
    left.legend()
    right.legend()
    figure.savefig(folder / "curves.png", dpi=110)
    return folder / "curves.png"
