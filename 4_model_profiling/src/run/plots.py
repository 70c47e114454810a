"""Pictures: what the model saw, what it made of it, and how the error fell."""

import itertools
from pathlib import Path

import iris_sample_data
import numpy as np
import pandas as pd
import torch
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from src.data.pytorch_dataset import FieldDataset

PANELS = (
    "truth",
    "what the model saw",
    "reconstruction, visible patches pasted in",
    "error",
)


# Maps keep the field's shape, so a wide one is cut: (width over height).
WIDEST = 15


def non_overlapping(dataset: FieldDataset) -> list[int]:
    """Up to 16 samples of the first one's months that do not overlap on the map."""
    samples: list[int] = []
    covered: set[tuple[float, float]] = set()
    first_time = dataset.coordinates(0)[0][0]
    for sample in range(len(dataset)):
        time, lat, lon = dataset.coordinates(sample)
        grid = getattr(dataset, "grid", None)  # images have none
        if grid is not None:
            # A window that crosses the edge of the globe has longitudes above 360 °E.
            lon = grid.lon[grid.columns(sample)]
        points = set(itertools.product(lat, lon))
        if time[0] != first_time or len(samples) == 16:
            break  # samples are in the order of time, and there may be millions
        if not points & covered:
            samples.append(sample)
            covered |= points

    # The last sample stays, however wide it is.
    _, lat, lon = dataset.coordinates(samples[-1])
    west = min(np.min(lon), np.max(lon) - WIDEST * np.ptp(lat))
    shown = []
    for sample in samples:
        _, _, lon = dataset.coordinates(sample)
        if np.min(lon) >= west:
            shown.append(sample)
    return shown


@torch.no_grad()
def reconstruct(
    model: nn.Module, dataset: FieldDataset, samples: list[int]
) -> np.ndarray:
    """The four panels in physical units: (4, samples, V, T, H, W)."""
    x = torch.stack([dataset[i][0] for i in samples])
    index = torch.tensor(samples)
    device = next(model.parameters()).device
    model.eval()
    output = model(x.to(device), index.to(device))
    model.train()

    hidden = output.hidden.cpu()
    seen = x.masked_fill(hidden, torch.nan)
    # Visible patches are pasted back: nobody asked the model to predict them. Land stays land.
    restored = torch.where(hidden, output.prediction.cpu(), x).masked_fill(
        x.isnan(), torch.nan
    )

    mean = dataset.mean[:, None, None, None]
    std = dataset.std[:, None, None, None]
    truth = x.numpy() * std + mean
    seen = seen.numpy() * std + mean
    restored = restored.numpy() * std + mean
    return np.stack([truth, seen, restored, restored - truth])


def plot_reconstructions(model: nn.Module, dataset: FieldDataset, folder: Path) -> Path:
    """Maps of each variable at the windows' middle time step, made of all windows that fit."""
    samples = non_overlapping(dataset)
    panels = reconstruct(model, dataset, samples)
    middle = panels.shape[3] // 2
    dates, _, _ = dataset.coordinates(0)

    columns = len(dataset.variables)
    figure = Figure(layout="compressed")
    axes = figure.subplots(4, columns, sharex=True, squeeze=False)
    for number, name in enumerate(dataset.variables):
        fields = panels[:, :, number, middle]  # (4, samples, H, W)
        draw_maps(axes[:, number], fields, dataset, samples)
        unit = dataset.units[number]
        axes[0, number].set(title=f"{name} ({unit}): truth")
        axes[3, number].set(title=f"error ({unit})")
    set_size(figure, axes[0, 0], columns)
    # The empty line leaves room for the globe.
    figure.suptitle(f"{dates[middle]!s:.10}; grey: no value (land or a gap)\n")
    grid = getattr(dataset, "grid", None)  # images have no place
    if grid is not None and getattr(grid, "has_degrees", True):
        figure.supxlabel("longitude (°E)")
        figure.supylabel("latitude (°N)")
        draw_place(figure, dataset, samples)
    figure.savefig(folder / "reconstructions.png", dpi=110)
    return folder / "reconstructions.png"


def set_size(figure: Figure, first: Axes, columns: int = 1) -> None:
    """Four maps in the shape of the ``first`` one below one another, in each column."""
    shape = first.dataLim.height / first.dataLim.width
    shape = max(shape, 1 / WIDEST)  # a single row has no height
    height = min(11 * shape, 2)
    width = max(height / shape + 1, 7)
    figure.set_size_inches(width * columns, 4 * height + 2)


def draw_place(figure: Figure, dataset: FieldDataset, samples: list[int]) -> None:
    """Where on the globe the maps lie."""
    globe = figure.add_axes((0.03, 0.89, 0.11, 0.105))
    globe.set(
        xlim=(0, 360),
        ylim=(-90, 90),
        xticks=[],
        yticks=[],
    )
    globe.set_aspect("equal", anchor="N")
    globe.set_facecolor("0.7")
    # A model's grid of the ocean; where it has no points there is land.
    ocean = xr.load_dataset(Path(iris_sample_data.path) / "orca2_votemper.nc")
    ocean_lon = ocean["nav_lon"].where(ocean["votemper"].notnull()) % 360
    globe.scatter(ocean_lon, ocean["nav_lat"], s=2, color="white", linewidths=0)
    for sample in samples:
        _, lat, lon = dataset.coordinates(sample)
        for turn in (-360, 0, 360):  # longitudes may begin anywhere
            globe.fill_between(lon + turn, min(lat), max(lat), color="C0", linewidth=0)


def draw_maps(
    axes: np.ndarray, panels: np.ndarray, dataset: FieldDataset, samples: list[int]
) -> None:
    """The four ``panels`` (4, samples, H, W) of one variable, below one another."""
    truth = panels[0]
    largest_error = np.nanmax(np.abs(panels[3]))
    field_colours = {
        "cmap": "viridis",
        "vmin": np.nanmin(truth),
        "vmax": np.nanmax(truth),
    }
    error_colours = {
        "cmap": "RdBu_r",
        "vmin": -largest_error,
        "vmax": largest_error,
    }
    for axis, title, panel in zip(axes, PANELS, panels, strict=True):
        colours = field_colours
        if title == "error":
            colours = error_colours
        for sample, field, true_field in zip(samples, panel, truth, strict=True):
            _, lat, lon = dataset.coordinates(sample)
            mesh = axis.pcolormesh(lon, lat, field, **colours)
            # Hidden values stay white, land is grey.
            land = np.where(np.isnan(true_field), 0.7, np.nan)
            axis.pcolormesh(
                lon,
                lat,
                land,
                cmap="gray",
                vmin=0,
                vmax=1,
            )
        axis.figure.colorbar(mesh, ax=axis, pad=0.01)
        axis.set(title=title, aspect="equal")


def plot_curves(folder: Path, dataset: FieldDataset, scores: dict) -> Path:
    """Loss over the steps, and the validation error of the first variable beside the baselines."""
    rmse = f"rmse_{dataset.variables[0]}"
    rows = pd.read_csv(folder / "metrics.csv", index_col="step")
    # A short run may have no row of training metrics.
    rows = rows.reindex(columns=["train_loss", "val_loss", rmse])
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)

    left.semilogy(rows["train_loss"].dropna(), label="training, one batch", alpha=0.6)
    left.semilogy(rows["val_loss"].dropna(), "o-", label="validation")
    left.set(xlabel="step", ylabel="mean squared error (normalised)")
    left.legend()

    right.plot(rows[rmse].dropna(), "o-", color="C1", label="masked autoencoder")
    for number, name in enumerate(list(scores)[1:], start=2):
        # The first one is the model's, and drawn as a curve.
        right.axhline(
            scores[name][rmse], linestyle="--", color=f"C{number}", label=name
        )
    unit = dataset.units[0]
    right.set(
        xlabel="step",
        ylabel=f"validation error of {dataset.variables[0]} ({unit})",
    )
    right.set_ylim(bottom=0)
    right.legend(loc="upper right", bbox_to_anchor=(1, 0.9))

    figure.savefig(folder / "curves.png", dpi=110)
    return folder / "curves.png"
