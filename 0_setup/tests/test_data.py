"""Datasets and scores: real values, no leakage in time, cells weighted by their area."""

import json

import numpy as np
import pytest
import torch
import xarray as xr

from src.data.pytorch_dataset import WindowDataset
from src.run.config import CHAPTER
from src.run.errors import UserError
from src.run.evaluation import squared_errors, to_scores
from tests.runs import call


@pytest.fixture
def fields() -> xr.Dataset:
    """Four years of two variables near 300, with a coast: the first three columns are land."""
    values = np.random.default_rng(0).normal(300, 1, (2, 48, 10, 12))
    values[..., :3] = np.nan
    months = xr.date_range("2001-01", periods=48, freq="MS")
    axes = {"time": months, "lat": np.linspace(-4, 4, 10), "lon": np.arange(12) * 30.0}
    return xr.Dataset(
        {"a": (list(axes), values[0]), "b": (list(axes), values[1])}, axes
    )


SETTINGS = {
    "window": (4, 4, 4),
    "train_stride": (1, 1, 1),
    "val_stride": (1, 1, 1),
    "train_period": ("2001-01", "2002-06"),
    "val_period": ("2002-11", "2003-04"),
    "test_period": ("2003-09", "2003-12"),
}


def windows(fields, split="train", **arguments) -> WindowDataset:
    return WindowDataset(fields, split, **(SETTINGS | arguments))


def test_windows_are_the_real_values(fields):
    """Also those that cross the edge of the globe. Broken by: no % in WindowGrid.columns."""
    dataset = windows(fields, wrap_longitude=True)
    dataset = dataset.windows_of(("2003-01", "2003-12"), (4, 2, 6))
    x, number = dataset[len(dataset) - 1]
    assert number == 3 * 4 * 2 - 1
    restored = x[1].numpy() * dataset.std[1] + dataset.mean[1]
    columns = np.arange(6, 10) % 12
    expected = fields["b"].values[32:36, 6:10, columns]
    np.testing.assert_allclose(restored, expected, rtol=1e-5)
    x, _ = windows(fields, wrap_longitude=True)[11]
    assert x[..., 0].isfinite().all()
    assert x[..., 1:].isnan().all()  # beyond the edge comes the coast


def test_later_months_leave_no_trace(fields):
    """Broken by: values in place of train_values in WindowDataset.__init__."""
    changed = fields.copy(deep=True)
    changed["a"][18:] = 1e6
    for split in ("train", "val"):
        before, after = windows(fields, split), windows(changed, split)
        for name in ("mean", "std", "season"):
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    # The validation set does see the change, or this test says nothing.
    assert after[0][0].nan_to_num().max() > 1e4


CLOSE = {
    "val_period": ("2002-10", "2003-04"),
    "train_period": ("2001-01", "2002-11"),
    "test_period": ("2003-08", "2003-12"),
}


def test_a_gap_of_one_window_and_some_variation(fields):
    """Broken by: gap < window[0], or no is_monotonic_increasing, in find_periods."""
    dates = windows(fields, "test").coordinates(0)[0]
    assert [str(date)[:7] for date in dates[[0, -1]]] == ["2003-09", "2003-12"]
    for name, period in CLOSE.items():
        with pytest.raises(
            UserError, match=r"4 time steps apart; the data go from 2001"
        ):
            windows(fields, **{name: period})
    with pytest.raises(UserError, match="have to rise"):
        windows(fields.isel(time=slice(None, None, -1)))
    fields["b"][3] = np.inf
    with pytest.raises(UserError, match="standard deviation"):
        windows(fields)


def test_scores_are_weighted_by_the_area_of_a_cell(fields):
    """An error at 60° counts half. Broken by: no area in squared_errors."""
    lat = [60.0, 0, 0, 0, *[0] * 6]
    dataset = windows(fields.assign_coords(lat=lat))
    x = torch.zeros(1, 2, 4, 4, 4)
    guess = x.clone()
    guess[:, :, :, 0] = 1.0  # wrong in the first row alone
    area = dataset.cell_area(torch.tensor([0]))
    scores = to_scores(squared_errors(guess, x, x == 0, area), dataset)
    assert scores["rmse_b"] == pytest.approx(dataset.std[1] * (0.5 / 3.5) ** 0.5)


def test_own_data_trains_and_is_tested(monkeypatch, tmp_path, fields):
    """A NetCDF file through the real train script. Broken by: no test_set in Loaders."""
    renamed = fields.rename(a="salinity", b="speed", lat="latitude", lon="longitude")
    renamed.to_netcdf(tmp_path / "mine.nc")
    settings = [f"-c={CHAPTER}/config/my_dataset.yaml", "--trainer.max_epochs=1"]
    settings += [f"--data.dataset.path={tmp_path}/mine.nc", "--trainer.wandb=disabled"]
    settings += ["--data.dataset.test_period=[2004-07,2004-12]"]
    call(monkeypatch, *settings, f"--trainer.output_dir={tmp_path}")
    summary = json.loads((tmp_path / "run_1" / "summary.json").read_text())
    scores = {split: summary[split]["climatology"] for split in ("validation", "test")}
    assert set(scores["test"]) == {"val_loss", "rmse_salinity", "rmse_speed"}
    assert scores["test"] != scores["validation"]
