"""Pictures: what the model saw, what it made of it, and how the error fell."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

from src.data.pytorch_dataset import FieldDataset
from src.run.evaluation import Scores, reconstruct


def plot_reconstructions(model: nn.Module, dataset: FieldDataset, folder: Path) -> None:
    """Four windows, one in a row: the first variable at the middle time step, in its units."""
    # Sevenths, because halves and quarters often show the same place.
    samples = [len(dataset) * seventh // 7 for seventh in (0, 2, 4, 6)]
    x = torch.stack([dataset[sample][0] for sample in samples])
    output = reconstruct(model, x, torch.tensor(samples))
    middle = x.shape[2] // 2

    # (4, H, W) each.
    std, mean = dataset.std[0], dataset.mean[0]
    truth = x[:, 0, middle].numpy() * std + mean
    prediction = output.prediction[:, 0, middle].numpy() * std + mean
    # Land is neither hidden nor predicted.
    is_hidden = output.hidden[:, 0, middle].numpy() & ~np.isnan(truth)
    # Visible patches are pasted back: nobody asked the model to predict them.
    restored = np.where(is_hidden, prediction, truth)
    panels = {
        "truth": truth,
        "visible to the model": np.where(is_hidden, np.nan, truth),
        "reconstruction": restored,
        "error": restored - truth,
    }

    figure = Figure(figsize=(14, 7), layout="constrained")
    figure.supxlabel("longitude (°E), latitude (°N); grey: land, or no value")
    axes = figure.subplots(4, 4)
    for column, (title, fields) in enumerate(panels.items()):
        axes[0, column].set_title(title)
        lowest = np.nanmin(truth)
        highest = np.nanmax(truth)
        colours = "viridis"
        if title == "error":
            highest = np.nanmax(np.abs(fields))
            lowest = -highest
            colours = "RdBu_r"
        for row, sample in enumerate(samples):
            dates, lat, lon = dataset.coordinates(sample)
            axes[row, 0].set_ylabel(f"{dates[middle]!s:.10}")
            axis = axes[row, column]
            # Grey where there is no value, white where it is hidden.
            axis.set_facecolor("0.7")
            white = np.where(is_hidden[row], 0, np.nan)
            axis.pcolormesh(lon, lat, white, cmap="gray_r")
            scale = {"cmap": colours, "vmin": lowest, "vmax": highest}
            mesh = axis.pcolormesh(lon, lat, fields[row], **scale)
        label = f"{dataset.variables[0]} ({dataset.units[0]})"
        figure.colorbar(mesh, ax=axes[:, column], location="bottom", label=label)
    figure.savefig(folder / "reconstructions.png")


def plot_curves(folder: Path, dataset: FieldDataset, scores: dict[str, Scores]) -> None:
    """Loss over the steps, and the validation error of the first variable beside the baselines."""
    rmse = f"rmse_{dataset.variables[0]}"
    rows = pd.read_csv(folder / "metrics.csv", index_col="step")
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    # A row has the metrics of a step or of a validation; a short run may have no step's.
    for name in rows.filter(like="_loss"):
        left.semilogy(rows[name].dropna(), ".-", label=name)
    left.set(xlabel="step", ylabel="mean squared error (normalised)")
    left.legend()
    rows[rmse].dropna().plot(
        ax=right,
        style="o-",
        label="masked autoencoder",
        ylabel=f"validation RMSE ({dataset.units[0]})",
        ylim=0,
    )
    # Of the baselines; the first one is the model itself.
    for number, name in enumerate(list(scores)[1:], start=1):
        error = scores[name][rmse]
        right.axhline(
            error,
            linestyle="--",
            color=f"C{number}",
            label=name,
        )
    right.legend(
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
    figure.savefig(folder / "curves.png")
