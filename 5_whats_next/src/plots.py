"""Pictures: what the model saw, what it made of it, and how the error fell.

Shapes: S samples, V variables, T times, H latitudes, W longitudes.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")  # draws into files: no window, no display needed

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import default_collate

from src.data.pytorch_dataset import Coordinates, FieldDataset

PANELS = ("truth", "what the model saw", "reconstruction, visible patches pasted in", "error")
MAX_WINDOWS = 64  # on one map: they are reconstructed in one batch
LAND = ListedColormap(["0.7"])


@torch.no_grad()
def reconstruct(
    model: nn.Module, dataset: FieldDataset, samples: Sequence[int], device: torch.device
) -> np.ndarray:
    """Truth, visible part, reconstruction and error in physical units: (4, S, V, T, H, W).

    Visible patches are pasted back into the reconstruction: nobody asked the model to predict them.
    """
    x, index = default_collate([dataset[sample] for sample in samples])
    model.eval()
    output = model(x.to(device), index.to(device))
    model.train()
    prediction, hidden = output.prediction.cpu(), output.hidden.cpu()
    # Land (NaN in x) stays NaN in the reconstruction, whatever the model says about it.
    restored = torch.where(hidden, prediction, x).masked_fill(torch.isnan(x), torch.nan)
    std, mean = (a[:, None, None, None] for a in (dataset.std, dataset.mean))
    truth, seen, restored = (
        f.numpy() * std + mean for f in (x, x.masked_fill(hidden, torch.nan), restored)
    )
    return np.stack([truth, seen, restored, restored - truth])


def plot_reconstructions(
    model: nn.Module, dataset: FieldDataset, device: torch.device, folder: Path
) -> Path:
    """A map where the dataset knows its coordinates, else a row for each of a few samples."""
    is_map = dataset.coordinates(0) is not None
    figure = (plot_map if is_map else plot_samples)(model, dataset, device)
    return save(figure, folder / "reconstructions.png")


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG file and free the figure, which matplotlib would keep for ever."""
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def plot_map(model: nn.Module, dataset: FieldDataset, device: torch.device) -> Figure:
    """All windows that fit side by side into one map, at the middle month of the first window."""
    places = [place for i in range(len(dataset)) if (place := dataset.coordinates(i)) is not None]
    chosen = side_by_side(places)[:MAX_WINDOWS]
    panels = reconstruct(model, dataset, chosen, device)[:, :, 0]  # the first variable
    month = panels.shape[2] // 2
    figure, axes = plt.subplots(4, 1, figsize=(12, 5.6), sharex=True, layout="constrained")
    limits = float(np.nanmin(panels[0, :, month])), float(np.nanmax(panels[0, :, month]))
    largest = float(np.nanmax(np.abs(panels[3, :, month])))
    for number, axis in enumerate(axes):
        for sample, window in enumerate(chosen):
            grid = places[window].lon, places[window].lat
            field, truth = panels[number, sample, month], panels[0, sample, month]
            scale = limits if number < 3 else (-largest, largest)
            mesh = draw(axis, grid, field, truth, scale, "viridis" if number < 3 else "RdBu_r")
        figure.colorbar(mesh, ax=axis, pad=0.01)
        axis.set(title=PANELS[number], ylabel="°N")
    lon = np.concatenate([place.lon for place in places])
    axes[-1].set(xlabel="longitude (°E)", xlim=(lon.min(), min(lon.max(), lon.min() + 360)))
    month_name = str(places[chosen[0]].time[month])[:7]
    title = f"{dataset.variables[0]} ({dataset.units[0]}), {month_name}"
    figure.suptitle(f"{title}; grey: no value (land or a gap)")
    return figure


def side_by_side(places: Sequence[Coordinates]) -> list[int]:
    """Numbers of windows of the first one's months that do not overlap, first come, first
    served.
    """
    chosen: list[int] = []
    for i, a in enumerate(places):
        free = not any(overlap(a, places[j]) for j in chosen)
        if free and a.time[0] == places[0].time[0]:
            chosen.append(i)
    return chosen


def overlap(a: Coordinates, b: Coordinates) -> bool:
    """Whether two windows share a grid point; latitudes may run either way."""
    apart = [
        one.min() > other.max() or one.max() < other.min()
        for one, other in ((a.lat, b.lat), (a.lon, b.lon))
    ]
    return not any(apart)


def plot_samples(model: nn.Module, dataset: FieldDataset, device: torch.device) -> Figure:
    """The first samples, at their middle time; three variables of one time step are a colour
    image.
    """
    chosen = range(min(4, len(dataset)))
    panels = reconstruct(model, dataset, chosen, device)
    time = panels.shape[3] // 2
    figure, axes = plt.subplots(
        len(chosen), 4, figsize=(10, 2.5 * len(chosen)), squeeze=False, layout="constrained"
    )
    is_image = tuple(dataset.variables) == ("red", "green", "blue")
    for sample, row in enumerate(axes):
        for number, axis in enumerate(row):
            axis.set(xticks=[], yticks=[], title=PANELS[number] if sample == 0 else "")
            fields = panels[number, sample, :, time]
            if is_image:
                image = fields.transpose(1, 2, 0) + (
                    0.5 if number == 3 else 0.0
                )  # no error: mid grey
                axis.imshow(np.nan_to_num(image, nan=1.0).clip(0, 1))
            else:
                grid = np.arange(fields.shape[2]), np.arange(fields.shape[1])
                limit = float(np.nanmax(np.abs(panels[0, sample, 0, time])))
                truth = panels[0, sample, 0, time]
                draw(axis, grid, fields[0], truth, (-limit, limit), "RdBu_r")
    return figure


def draw(
    axis: Axes,
    grid: tuple[np.ndarray, np.ndarray],
    field: np.ndarray,
    truth: np.ndarray,
    limits: tuple[float, float],
    cmap: str,
) -> plt.cm.ScalarMappable:
    """One field (H, W); hidden values stay white, land (NaN in ``truth``) is grey."""
    mesh = axis.pcolormesh(
        *grid, field, cmap=cmap, vmin=limits[0], vmax=limits[1], shading="nearest"
    )
    axis.pcolormesh(*grid, np.where(np.isnan(truth), 1.0, np.nan), cmap=LAND, shading="nearest")
    return mesh


def plot_curves(
    folder: Path, scores: Mapping[str, Mapping[str, float]], dataset: FieldDataset
) -> Path:
    """Loss over the steps, and the validation error of the first variable beside the baselines."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    def column(name: str) -> tuple[list[int], list[float]]:
        filled = [row for row in rows if row[name]]
        return [int(row["step"]) for row in filled], [float(row[name]) for row in filled]

    variable, unit = dataset.variables[0], dataset.units[0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    left.plot(*column("train_loss"), label="training, one batch", alpha=0.6)
    left.plot(*column("val_loss"), "o-", label="validation")
    left.set(xlabel="step", ylabel="mean squared error (normalised)")
    low, high = left.get_ylim()
    if rows and high > 5 * max(low, 0.01):
        left.set_yscale("log")
    left.legend()
    right.plot(*column(f"rmse_{variable}"), "o-", color="C1", label="masked autoencoder")
    baselines = [name for name in scores if name != "masked autoencoder"]
    for number, name in enumerate(baselines):
        right.axhline(
            scores[name][f"rmse_{variable}"], linestyle="--", color=f"C{number + 2}", label=name
        )
    right.set(xlabel="step", ylabel=f"validation RMSE ({unit})", title=variable)
    right.set_ylim(0, 1.1 * right.get_ylim()[1])
    right.legend()
    return save(figure, folder / "curves.png")
