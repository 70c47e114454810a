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
overlaps the one before, the last one counts. One window's time steps are in memory at once.
"""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import dask
import numpy as np
import pandas as pd
import torch
import xarray as xr
from jsonargparse import auto_cli
from lightning_train import CLASSES, build
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm.dask import TqdmCallback

from src.checkpoint_files import DurableCheckpointIO
from src.config import HelpFormatter, choose_device, parse_config
from src.data.store import AXES, open_fields, open_store, select
from src.data.windows import Period, Window, WindowGrid, find_period
from src.errors import UserError, one_line_errors
from src.evaluation import latitude_weights, squared_error

BATCH_SIZE = 32
HIDDEN = {"long_name": "1: hidden from the model, and predicted; 0: as in the store"}


def open_run(
    folder: Path, checkpoint: str
) -> tuple[Any, nn.Module, dict[str, Any], int]:
    """A run's data, its model, its data's settings, and the optimiser step of the checkpoint.

    Raises UserError if it is no run, the checkpoint is damaged, or the data are in no store.
    """
    config, _ = parse_config("", [f"--resume={folder}"], *CLASSES)
    path = folder / "checkpoints" / f"{checkpoint}.ckpt"
    saved = DurableCheckpointIO().load_checkpoint(path)
    open_dataset = config.data.dataset
    dataset = open_dataset("val")
    if not hasattr(dataset, "lazy_fields"):
        raise UserError(
            f"{type(dataset).__name__} has no store; FastDataset and CloudDataset have"
        )

    # The model is built when its data's shape is known.
    shape = {"sample_shape": list(dataset.sample_shape)}
    module = build(CLASSES[0], config.get("model"), shape)
    module.configure_model()
    module.load_state_dict(saved["state_dict"])
    model = module.model.eval().to(choose_device("auto"))
    return dataset, model, open_dataset.keywords, saved["global_step"]


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
def predict(
    model: nn.Module, x: Tensor, window: Window, block: int
) -> tuple[Tensor, Tensor]:
    """The prediction of all values, and which of them were hidden; both have the shape of ``x``.

    Args:
        model: hides patches of a window, and predicts them.
        x: normalised fields (V, T, H, W) of any size that a window fits into.
        window: time steps, latitudes and longitudes.
        block: number of these fields along the time axis.
    """
    slices = []
    for length, size in zip(x.shape[1:], window, strict=True):
        starts = [*range(0, length - size, size), length - size]
        slices.append([slice(start, start + size) for start in starts])
    places = list(itertools.product(*slices))

    prediction = torch.zeros_like(x)
    hidden = torch.zeros_like(x, dtype=torch.bool)
    device = next(model.parameters()).device
    for batch in torch.arange(len(places)).split(BATCH_SIZE):
        windows = torch.stack([x[:, *places[i]] for i in batch])
        # The numbers decide what is hidden. They are the validation's only where val_stride is the
        # window, and the window divides grid and period.
        index = block * len(places) + batch
        output = model(windows.to(device), index.to(device))
        for n, i in enumerate(batch):
            prediction[:, *places[i]] = output.prediction[n].cpu()
            hidden[:, *places[i]] = output.hidden[n].cpu()
    return prediction, hidden


def lazy_output(
    model: nn.Module, dataset: Any, fields: xr.Dataset, errors: list[Tensor]
) -> xr.Dataset:
    """What is to be written. Nothing is read or computed yet.

    A block has the time steps of one window; the last one also has those that are left over.

    Args:
        model: hides patches of a window, and predicts them.
        dataset: has the window, and the mean and standard deviation of each variable.
        fields: over (time, lat, lon), in their units.
        errors: gets the sums of squared_error (2, V) of each block that is computed.

    Raises:
        UserError: there are fewer time steps than a window has.
    """
    window = dataset.grid.window
    num_steps, height, width = (fields.sizes[axis] for axis in AXES)
    if num_steps < window[0]:
        raise UserError(f"--period: {num_steps} steps; a window has {window[0]}")
    # latitude_weights takes a dataset: here one whose only window is the whole grid.
    whole = (1, height, width)
    one_window = SimpleNamespace(grid=WindowGrid(fields, whole, whole, slice(0, 1)))
    weights = latitude_weights(one_window, torch.tensor([0]))
    std = dataset.std[:, None, None, None]
    mean = dataset.mean[:, None, None, None]

    def predict_block(stored: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
        """The fields with predictions where they were hidden, and where: (V + 1, T, H, W)."""
        x = torch.from_numpy(dataset.normalise(stored))
        prediction, hidden = predict(model, x, window, block_id[1])
        error = squared_error(prediction[None], x[None], hidden[None], weights)
        errors.append(error)
        in_units = prediction.numpy() * std + mean
        mixed = np.where(hidden & ~x.isnan(), in_units, stored)
        return np.concatenate([mixed, hidden[:1]])  # all variables are hidden together

    lengths = [window[0]] * (num_steps // window[0])
    lengths[-1] += num_steps % window[0]
    blocks = fields.chunk(time=tuple(lengths), lat=-1, lon=-1).astype(np.float32)
    stored = blocks.to_dataarray().chunk(variable=-1).data
    chunks = (len(fields) + 1, *stored.chunks[1:])
    predicted = stored.map_blocks(
        predict_block, chunks=chunks, meta=np.empty(0, np.float32)
    )
    predicted = predicted.rechunk({1: window[0]})  # Zarr's chunks are equally long

    *variables, is_hidden = predicted  # arrays (T, H, W)
    output = fields.copy(data=dict(zip(fields, variables, strict=True)))
    output["hidden"] = (AXES, is_hidden.astype(np.int8), HIDDEN)
    return output.drop_encoding()


def write(output: xr.Dataset, target: Path) -> None:
    """Compute and write, one block after the other. An error or a signal leaves nothing behind."""
    temporary = target.with_name(f"{target.name}.tmp")
    one_by_one = dask.config.set(scheduler="single-threaded")
    try:
        with one_by_one, TqdmCallback(desc=target.name, unit="task", disable=None):
            if target.suffix == ".nc":
                output.to_netcdf(temporary, engine="netcdf4")
            else:
                output.to_zarr(temporary, mode="w", write_empty_chunks=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # Zarr is a folder, NetCDF a file
        temporary.unlink(missing_ok=True)


def draw(stored: Any, predicted: Any, path: Path) -> None:
    """Four maps (H, W) of one date; hidden values are white, missing ones grey."""
    field = predicted[stored.name]
    error = (field - stored).assign_attrs(stored.attrs)
    missing = 0.7 * stored.isnull().where(stored.isnull())
    colours = {"vmin": stored.min(), "vmax": stored.max()}
    figure = Figure(figsize=(12, 7), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True).flat

    stored.plot(ax=axes[0], **colours)
    stored.where(predicted["hidden"] == 0).plot(ax=axes[1], **colours)
    field.plot(ax=axes[2], **colours)
    error.plot(ax=axes[3], center=0, cmap="RdBu_r")
    titles = (
        "in the store",
        "what the model saw",
        "predicted",
        "predicted minus store",
    )
    for axis, title in zip(axes, titles, strict=True):
        missing.plot(ax=axis, cmap="gray", vmin=0, vmax=1, add_colorbar=False)
        axis.set(title=title)
    figure.suptitle(f"{stored.name}, {stored['time'].values!s:.16}")
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
    """Predict and write, print the errors, draw.

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
    dataset, model, settings, step = open_run(folder, checkpoint)
    trained = dataset.lazy_fields.indexes["time"]
    trained = trained[find_period(trained, settings["train_period"])]
    fields = fields_of(dataset, settings, url) if url else dataset.lazy_fields
    steps = find_period(fields.indexes["time"], period or settings["val_period"])
    fields = fields.isel(time=steps).transpose(*AXES)
    dates = fields.indexes["time"]
    is_trained_on = dates[0] <= trained[-1] and trained[0] <= dates[-1]
    # Before hours of computing.
    if picture and picture not in fields:
        raise UserError(f"--picture {picture}: the variables are {list(fields)}")
    day = find_period(dates, (date, date)).start if date else 0
    columns = [f"rmse_{name}" for name in fields]
    metrics = pd.read_csv(folder / "metrics.csv").groupby("step").last()
    table = metrics.reindex(index=[step], columns=columns).T.add_prefix("step ")

    errors: list[Tensor] = []
    output = lazy_output(model, dataset, fields, errors)
    output.attrs = {
        "source": f"{url or dataset.url}; {folder}, {checkpoint}, step {step}"
    }
    write(output, target)

    error, weight = torch.stack(errors).sum(0).numpy()
    table.insert(0, "this file", np.sqrt(error / weight) * dataset.std)
    table["unit"] = dataset.units
    note = " (trained on)" if is_trained_on else ""
    print(f"hidden values: RMSE here{note}, and in the run's validation\n{table}")
    print(f"look at {target}")
    if picture:
        with xr.open_dataset(target) as written:
            predicted = written.isel(time=day).load()
        png = target.with_name(f"{target.stem}_{picture}_{dates[day]!s:.10}.png")
        draw(fields[picture].isel(time=day).load(), predicted, png)
        print(f"look at {png}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(
            main,
            as_positional=False,
            description=__doc__,
            formatter_class=HelpFormatter,
        )
