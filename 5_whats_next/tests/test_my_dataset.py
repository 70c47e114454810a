"""The README's worked example: a NetCDF file of one's own, through the real train script."""

import sys

import numpy as np
import pytest
import pytorch_train
import xarray as xr
from my_dataset import MyDataset
from src.config import CHAPTER
from src.errors import UserError

NUMBERS = (6, 8, 8), (0, 24), (30, 36)  # window, training months, validation months


@pytest.fixture
def netcdf(tmp_path) -> str:
    """Three years of two variables on a grid of 10 by 14 points, some of it land."""
    rng = np.random.default_rng(0)
    axes = ("time", "latitude", "longitude")
    salinity = 35 + rng.normal(size=(36, 10, 14)).astype(np.float32)
    salinity[:, :, 12:] = np.nan
    fields = xr.Dataset(
        {
            "salinity": (axes, salinity, {"units": "1e-3"}),
            "speed": (axes, rng.random((36, 10, 14), np.float32), {"units": "m s-1"}),
        },
        coords={
            "time": np.datetime64("2001-01-15", "ns") + 30 * np.arange(36).astype("timedelta64[D]"),
            "latitude": np.linspace(-4, 4, 10),
            "longitude": np.linspace(10, 20, 14),
        },
    )
    fields.to_netcdf(tmp_path / "mine.nc")
    return str(tmp_path / "mine.nc")


def test_own_data_trains(monkeypatch, tmp_path, netcdf, capsys):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    arguments = ["--config", str(CHAPTER / "config/my_dataset.yaml"), "--trainer.max_epochs=1"]
    arguments += [f"--data.dataset.path={netcdf}", f"--trainer.output_dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["pytorch_train.py", *arguments])
    assert pytorch_train.main() == 0
    printed = capsys.readouterr().out
    assert "validation RMSE of salinity (1e-3)" in printed
    assert "validation RMSE of speed (m s-1)" in printed
    assert (tmp_path / "run_1" / "reconstructions.png").exists()


def test_own_options_are_checked(monkeypatch, netcdf):
    arguments = ["--data.dataset=my_dataset.MyDataset", f"--data.dataset.path={netcdf}"]
    monkeypatch.setattr(sys, "argv", ["pytorch_train.py", *arguments, "--data.dataset.windw=1"])
    with pytest.raises(UserError, match=r"'windw' is not accepted; allowed for MyDataset: path, v"):
        pytorch_train.main()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.rename(speed="velocity"),
            r"\['speed'\] given, not in .*allowed: salinity, vel",
        ),
        (
            lambda d: d.expand_dims(depth=[0.5]),
            r"salinity has the axes depth, time, lat, lon; allowed",
        ),
        (
            lambda d: d.rename(time="t"),
            r"salinity has the axes t, lat, lon; allowed: time, lat, lon",
        ),
        (lambda d: d.assign_coords(time=range(36)), r"time is not given as dates"),
    ],
)
def test_files_that_do_not_fit(tmp_path, netcdf, change, message):
    with xr.open_dataset(netcdf) as file:
        change(file.load()).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(UserError, match=message):
        MyDataset("train", str(tmp_path / "other.nc"), ["salinity", "speed"], *NUMBERS)


def test_axes_may_be_called_lat_and_lon(tmp_path, netcdf):
    with xr.open_dataset(netcdf) as file:
        file.load().rename(latitude="lat", longitude="lon").to_netcdf(tmp_path / "other.nc")
    assert len(MyDataset("train", str(tmp_path / "other.nc"), ["speed"], *NUMBERS)) > 0


def test_not_a_netcdf_file(tmp_path):
    (tmp_path / "text.nc").write_text("hello")
    for name in ("text.nc", "absent.nc"):
        with pytest.raises(UserError, match=rf"data.dataset.path: cannot read .*{name}"):
            MyDataset("train", str(tmp_path / name), ["speed"], *NUMBERS)
