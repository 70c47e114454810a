"""Predict hidden values of fields: one NetCDF or Zarr file with names, units, dates, coordinates.

uv run python predict.py --run output/mine                its best checkpoint, its validation period
uv run python predict.py --run output/mine --period "[1996-01,1996-12]" --to predicted.nc
uv run python predict.py --run output/mine --to new.zarr --picture air_temperature --date 1996-06
uv run python predict.py --run output/mine --url new.zarr --period "[2024-01,2024-12]"  later dates

The model hides patches of the fields, as in its validation, and predicts them from the others. The
file covers the whole grid:

  hidden   1 in the hidden patches, which are the same for all variables; 0 elsewhere
  NAME     each variable, in float32: the model's prediction where hidden is 1; the store's value,
           to the bit, where it is 0; missing wherever the store has no value

Gaps in the store, such as the sea under clouds, are not filled: the model takes for land whatever
is missing. Windows lie side by side. Along each axis the last one ends at the edge; where it
overlaps the one before, the last one counts. The period's values are in memory, about six times.
"""

import itertools
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from distributed.system import MEMORY_LIMIT
from jsonargparse import auto_cli
from lightning_train import CLASSES, build
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from src.data.statistics import check_dates
from src.data.store import AXES, open_fields, open_store, select
from src.data.windows import Period, Window, find_period
from src.run.checkpoint_files import DurableCheckpointIO
from src.run.config import HelpFormatter, choose_device, parse_config
from src.run.errors import UserError, one_line_errors
from src.run.plots import WIDEST, set_size

BATCH_SIZE = 32
HIDDEN = {"long_name": "1: hidden from the model, and predicted; 0: as in the store"}


def open_run(folder: Path, checkpoint: str) -> tuple[Any, nn.Module, dict[str, Any]]:
    """A run's data, its model, and its data's settings.

    Raises UserError if it is no run, the data are in no store, or the checkpoint is damaged.
    """
    config, _ = parse_config("", [f"--resume={folder}"], *CLASSES)
    path = folder / "checkpoints" / f"{checkpoint}.ckpt"
    saved = DurableCheckpointIO().load_checkpoint(path)
    open_dataset = config.data.dataset
    dataset = open_dataset("val")
    if not hasattr(dataset, "lazy_fields"):
        raise UserError(f"{folder}: trained on {type(dataset).__name__}, and no store")

    # The model is built when its data's shape is known.
    shape = {"sample_shape": list(dataset.sample_shape)}
    module = build(CLASSES[0], config.get("model"), shape)
    module.configure_model()
    module.load_state_dict(saved["state_dict"])
    model = module.model.eval().to(choose_device("auto"))
    return dataset, model, open_dataset.keywords


def fields_of(dataset: Any, settings: dict[str, Any], url: str) -> xr.Dataset:
    """The dataset's variables in another store, which may have other dates.

    Raises UserError if variables, units or grid differ: the model has learned nothing about others.
    """
    store = open_store(url, dataset.patience, dataset.anonymous)
    fields = select(open_fields(store), settings["variables"], url, settings["levels"])
    if dataset.missing_chunks == "land":
        store.allow_land(fields)
    for name, unit in zip(dataset.variables, dataset.units, strict=True):
        if name not in fields or fields[name].attrs.get("units", "1") != unit:
            raise UserError(f"--url {url}: no {name} in {unit}, as in {dataset.url}")
    for axis in ("lat", "lon"):
        if not fields[axis].equals(dataset.lazy_fields[axis]):
            raise UserError(f"--url {url}: another {axis} than in {dataset.url}")
    return fields[dataset.variables]


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """The prediction of all values, and which of them were hidden; both have the shape of ``x``.

    Args:
        model: hides patches of a window, and predicts them.
        x: normalised fields (V, T, H, W) of any size that a window fits into.
        window: time steps, latitudes and longitudes.
    """
    slices = []
    for length, size in zip(x.shape[1:], window, strict=True):
        starts = [*range(0, length - size, size), length - size]
        slices.append([slice(start, start + size) for start in starts])
    places = list(itertools.product(*slices))

    prediction = torch.zeros_like(x)
    hidden = torch.zeros_like(x, dtype=torch.bool)
    device = next(model.parameters()).device
    # The numbers decide what is hidden. They are the validation's only where val_stride is the
    # window, and the window divides grid and period.
    for index in tqdm(torch.arange(len(places)).split(BATCH_SIZE), disable=None):
        windows = torch.stack([x[:, *places[i]] for i in index])
        output = model(windows.to(device), index.to(device))
        for n, i in enumerate(index):
            prediction[:, *places[i]] = output.prediction[n].cpu()
            hidden[:, *places[i]] = output.hidden[n].cpu()
    return prediction, hidden


def predict_fields(model: nn.Module, dataset: Any, fields: xr.Dataset) -> xr.Dataset:
    """The fields with predictions where they were hidden, and where that is.

    Args:
        model: hides patches of a window, and predicts them.
        dataset: has the window, and the mean and standard deviation of each variable.
        fields: over (time, lat, lon), in their units.

    Raises:
        UserError: there are fewer time steps than a window has, or more than fit into memory.
    """
    # The fields, normalised ones, predictions, masks, and what is written.
    needed = 6 * fields.nbytes
    if needed > MEMORY_LIMIT:
        raise UserError(
            f"--period: {needed / 1e9:.0f} GB of memory: take a shorter one"
        )
    window = dataset.grid.window
    num_steps = fields.sizes["time"]
    if num_steps < window[0]:
        raise UserError(f"--period: {num_steps} steps; a window has {window[0]}")
    stored = fields.astype(np.float32).to_dataarray().values  # (V, T, H, W)
    x = torch.from_numpy(dataset.normalise(stored))
    prediction, hidden = predict(model, x, window)
    std = dataset.std[:, None, None, None]
    mean = dataset.mean[:, None, None, None]
    in_units = prediction.numpy() * std + mean
    mixed = np.where(hidden & ~x.isnan(), in_units, stored).astype(np.float32)
    output = fields.copy(data=dict(zip(fields, mixed, strict=True)))
    # All variables are hidden together.
    output["hidden"] = (AXES, hidden[0].numpy().astype(np.int8), HIDDEN)
    return output.drop_encoding()


def write(output: xr.Dataset, target: Path) -> None:
    """Write a file or a folder. An error or a signal leaves nothing behind."""
    temporary = target.with_name(f"{target.name}.tmp")
    try:
        if target.suffix == ".nc":
            output.to_netcdf(temporary, engine="netcdf4")
        else:
            output.to_zarr(temporary, mode="w")
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # Zarr is a folder, NetCDF a file
        temporary.unlink(missing_ok=True)


def draw(stored: Any, predicted: Any, path: Path) -> None:
    """Four maps (H, W) of one date; hidden values are white, missing ones grey."""
    # Of a field too wide for a picture, its east.
    lat, lon = stored["lat"], stored["lon"]
    west = lon.max() - WIDEST * (lat.max() - lat.min())
    stored = stored.where(lon >= west, drop=True)
    predicted = predicted.sel(lon=stored["lon"])
    panels = {
        "in the store": stored,
        "what the model saw": stored.where(predicted["hidden"] == 0),
        "predicted where hidden": predicted[stored.name],
        "error": predicted[stored.name] - stored,
    }
    missing = 0.7 * stored.isnull().where(stored.isnull())
    field_colours = {"cmap": "viridis", "vmin": stored.min(), "vmax": stored.max()}
    figure = Figure(layout="compressed")
    axes = figure.subplots(4, sharex=True)
    for axis, (title, field) in zip(axes, panels.items(), strict=True):
        colours = field_colours
        if title == "error":
            colours = {"cmap": "RdBu_r", "center": 0}
        field.plot(ax=axis, cbar_kwargs={"label": ""}, **colours)
        missing.plot(ax=axis, cmap="gray", vmin=0, vmax=1, add_colorbar=False)
        axis.set(title=title, aspect="equal", xlabel="", ylabel="")
    set_size(figure, axes[0])
    figure.supxlabel(f"longitude ({lon.attrs.get('units', '°E')})")
    figure.supylabel(f"latitude ({lat.attrs.get('units', '°N')})")
    units = stored.attrs.get("units", "no units")
    figure.suptitle(f"{stored.name} ({units}), {stored['time'].values!s:.16}")
    figure.savefig(path, dpi=110)


def main(
    run: str,
    period: Period | None = None,
    to: str | None = None,
    checkpoint: Literal["best", "last"] = "best",
    url: str | None = None,
    picture: str | None = None,
    date: str | None = None,
) -> None:
    """Predict, write, draw.

    Args:
        run: folder of a run of lightning_train.py.
        period: first and last date, both inclusive; null: the run's validation period.
        to: a file .nc or a folder .zarr on this disk; null: prediction.nc in the run's folder.
        checkpoint: the one with the lowest validation loss, or the last one.
        url: another store with the same variables, units and grid; null: the run's. The mean and
            the standard deviation are those of the training, from the run's store.
        picture: a variable to draw, as a PNG beside the output.
        date: of the picture; null: the first one.
    """
    folder = Path(run)
    target = Path(to or folder / "prediction.nc")
    if target.suffix not in (".nc", ".zarr") or "://" in str(to):
        raise UserError(f"--to {to}: a file .nc or a folder .zarr on this disk")
    if target.exists():
        raise UserError(f"{target} is there: delete it, or give another --to")
    target.parent.mkdir(parents=True, exist_ok=True)
    dataset, model, settings = open_run(folder, checkpoint)
    fields = fields_of(dataset, settings, url) if url else dataset.lazy_fields
    steps = find_period(fields.indexes["time"], period or settings["val_period"])
    check_dates(fields.indexes["time"], steps)
    fields = fields.isel(time=steps).transpose(*AXES)
    dates = fields.indexes["time"]
    day = find_period(dates, (date, date)).start if date else 0
    # Before hours of computing.
    if picture and picture not in fields.data_vars:
        raise UserError(f"--picture {picture}: the variables are {list(fields)}")

    output = predict_fields(model, dataset, fields)
    output.attrs = {"source": f"{url or dataset.url}; {folder}, {checkpoint}"}
    write(output, target)
    print(f"look at {target}")
    if picture:
        png = target.with_name(f"{target.stem}_{picture}_{dates[day]!s:.10}.png")
        draw(fields[picture].isel(time=day).load(), output.isel(time=day), png)
        print(f"look at {png}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(
            main,
            as_positional=False,
            description=__doc__,
            formatter_class=HelpFormatter,
        )
