"""Datasets and loaders: real values, no leakage in time, different workers."""

import json
import os
import re
import sys
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, SIGTERM, getsignal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from torch.utils.data import DataLoader, Dataset

from src.data.cifar10 import CIFAR10Dataset
from src.data.loaders import Loaders
from src.data.pytorch_dataset import DummyDataset, WindowDataset
from src.data.windows import find_periods
from src.model.pytorch_model import MaskedAutoencoder
from src.run.config import CHAPTER
from src.run.errors import UserError
from src.run.plots import plot_reconstructions
from src.run.report import samples_to_score
from tests.runs import call, finish, start, wait_until_gone


@pytest.fixture
def fields() -> xr.Dataset:
    """Three years of two variables near 300, with a coast: the first three columns are land."""
    rng = np.random.default_rng(0)
    values = {name: rng.normal(300, 1, (36, 10, 12)).astype("float32") for name in "ab"}
    months = np.datetime64("2001-01", "ns") + 31 * np.arange(36).astype(
        "timedelta64[D]"
    )
    axes = {"time": months, "lat": np.linspace(-4, 4, 10), "lon": np.arange(12) * 30.0}
    dataset = xr.Dataset(
        {name: (list(axes), array) for name, array in values.items()}, axes
    )
    return dataset.where(dataset.lon >= 90)


def windows(fields, split="train", **arguments) -> WindowDataset:
    settings = {"window": (4, 4, 4), "stride": (1, 1, 1)}
    settings |= {
        "train_period": ("2001-01", "2002-12"),
        "val_period": ("2003-07", "2003-12"),
    }
    return WindowDataset(fields, split, **(settings | arguments))


def test_windows_are_the_real_values(fields):
    """Also those that cross the edge of the globe. Broken by: no % self.width in columns."""
    dataset = windows(fields, wrap_longitude=True)
    for index in (0, 8, len(dataset) - 1):
        x, number = dataset[index]
        time, lat, lon = dataset.grid.slices(index)
        restored = x[1].numpy() * dataset.std[1] + dataset.mean[1]
        columns = np.arange(lon.start, lon.stop)
        expected = np.take(fields["b"].values[time, lat], columns, axis=2, mode="wrap")
        np.testing.assert_allclose(restored, expected, rtol=1e-5)
        np.testing.assert_array_equal(dataset.coordinates(index)[2], columns * 30)
        assert number == index


def test_validation_months_leave_no_trace(fields):
    """Broken by: values in place of train_values in WindowDataset.__init__."""
    changed = fields.copy(deep=True)
    changed["a"][24:] = 1e6
    before = windows(fields)
    after = windows(changed)
    np.testing.assert_array_equal([before.mean, before.std], [after.mean, after.std])
    np.testing.assert_array_equal(before.monthly_mean, after.monthly_mean)
    for index in range(len(before)):
        np.testing.assert_array_equal(before[index][0], after[index][0])
    # The validation set does see the change, or this test says nothing.
    assert windows(changed, "val")[0][0].nan_to_num().max() > 1e4


def test_a_gap_of_one_window_and_some_variation(fields):
    """Broken by: gap < window[0], or no is_monotonic_increasing, in find_periods."""
    windows(fields, val_period=("2003-05", "2003-12"))
    # Validation may come first.
    later = ("2002-01", "2003-12")
    windows(fields, train_period=later, val_period=("2001-01", "2001-08"))
    own_dates = "from 2001-01-01 .* to 2003-12-22"
    for val_period in (("2003-04", "2003-12"), ("2002-07", "2003-02")):
        with pytest.raises(
            UserError, match=f"window of 4 time steps apart.*{own_dates}"
        ):
            windows(fields, val_period=val_period)
    for date in ("2004-01", "2000-12", "June", "2001-13"):
        with pytest.raises(UserError, match=f"no data of {date}.*{own_dates}"):
            windows(fields, train_period=("2001-01", date))
    with pytest.raises(UserError, match="have to rise"):
        windows(fields.isel(time=slice(None, None, -1)))
    for nothing_to_learn in (np.nan, np.inf, 5.0):
        fields["b"][:24] = nothing_to_learn
        with pytest.raises(UserError, match="standard deviation"):
            windows(fields)


@pytest.mark.parametrize(
    ("step", "period", "expected"),
    [
        ("MS", ("2001-02-01", "2001-11"), (1, 11)),
        ("D", ("2001-01-02", "2001-02"), (1, 59)),
        ("h", ("2001-01-01T05", "2001-01-02"), (5, 48)),
    ],
)
@pytest.mark.parametrize("use_cftime", [False, True])
def test_periods_of_any_precision(step, period, expected, use_cftime):
    """The first and the last date belong to it. Broken by: a step less in find_period."""
    index = xr.date_range("2001-01", periods=1000, freq=step, use_cftime=use_cftime)
    far_away = str(index[-1].strftime("%Y-%m-%d"))
    train, _ = find_periods(index, (1, 1, 1), period, (far_away, far_away))
    assert (train.start, train.stop) == expected


def test_own_data_trains(monkeypatch, tmp_path, fields):
    """The README's worked example: a NetCDF file through the real train script."""
    renamed = fields.rename(a="salinity", b="speed", lat="latitude", lon="longitude")
    renamed.to_netcdf(tmp_path / "mine.nc")
    arguments = [
        f"-c={CHAPTER}/config/my_dataset.yaml",
        f"--trainer.output_dir={tmp_path}",
    ]
    arguments += [f"--data.dataset.path={tmp_path}/mine.nc", "--trainer.max_epochs=1"]
    arguments += ["--trainer.picture_every_n_epochs=0", "--trainer.wandb=disabled"]
    assert call(monkeypatch, *arguments) == 0
    scores = json.loads((tmp_path / "run_1" / "summary.json").read_text())["validation"]
    assert {"val_loss", "rmse_salinity", "rmse_speed"} == set(scores["climatology"])


def test_a_large_validation_is_scored_on_all_columns():
    """Broken by: every n-th sample in samples_to_score, with n a multiple of the columns."""
    assert len({sample % 40 for sample in samples_to_score(40_000)}) == 40
    assert samples_to_score(54) == list(range(54))


@pytest.mark.parametrize("shape", [(1, 1, 1, 32), (1, 2, 2, 64)])
def test_a_picture_of_a_row_and_of_a_wide_window(tmp_path, shape):
    """Broken by: west without np.min(lon); no second max in set_size."""
    model = MaskedAutoencoder(shape, patch_size=(1, 1, 8))
    assert plot_reconstructions(model, DummyDataset("val", shape), tmp_path).exists()


def test_cifar10_is_read(monkeypatch):
    """In torchvision's format, without torchvision. Broken by: no permute in CIFAR10Dataset."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    archive = SimpleNamespace(CIFAR10=lambda *_, **__: SimpleNamespace(data=pixels))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", archive)
    train = CIFAR10Dataset("train")
    assert (len(train), train.sample_shape) == (4, (3, 1, 32, 32))
    restored = train[2][0][:, 0].permute(1, 2, 0).numpy() * train.std + train.mean
    np.testing.assert_allclose(restored * 255, pixels[2], atol=1e-3)


class RandomNumbers(Dataset):
    def __getitem__(self, index: int) -> torch.Tensor:
        ignores = getsignal(SIGINT) == SIG_IGN and callable(getsignal(SIGTERM))
        return torch.tensor([torch.rand(()), ignores])


def test_workers_draw_different_numbers_and_the_same_in_each_run():
    """And go on at a signal. Broken by: no generator or worker_init_fn in Loaders.options."""
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        settings = Loaders(DummyDataset, num_workers=2).options()
        loader = DataLoader(RandomNumbers(), None, sampler=range(8), **settings)
        runs.append(torch.stack([*loader]))
    assert runs[0].equal(runs[1])
    numbers, ignores = runs[0].T
    assert (numbers[0::2] != numbers[1::2]).all()  # two workers take turns
    assert ignores.all()


class Unreadable(Dataset):
    def __getitem__(self, index: int):
        return Path("nowhere").open()


class Deadly(Dataset):
    def __getitem__(self, index: int):
        os.kill(os.getpid(), SIGKILL)


# In a process of its own: the queues of killed workers close their pipes twice.
PROGRAM = """import sys
from torch.utils.data import DataLoader
from src.run.errors import one_line_errors
from tests import test_data
with one_line_errors():
    list(DataLoader(getattr(test_data, sys.argv[1])(), sampler=[0], num_workers=2))"""
FAILURES = [
    ("Unreadable", r"error: \[Errno 2\] No such file or directory: 'nowhere'\n"),
    ("Deadly", r"error: DataLoader worker .*\n"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "line"), FAILURES)
def test_an_error_of_a_worker_is_one_line(tmp_path, dataset, line):
    """And all workers are ended. Broken by: str(error) alone in one_line_errors; no SIG_DFL."""
    process = start(tmp_path, command=["-c", PROGRAM, dataset])
    assert re.fullmatch(line, finish(process, 1))
    wait_until_gone(process.pid)
