"""The study, the preflight; and secrets, which no run may write anywhere."""

import csv
import re
import shutil
from multiprocessing import forkserver
from time import perf_counter
from unittest import mock

import lightning_train
import pandas as pd
import preflight
import pytest
import short_run
import torch
import xarray as xr

from src.data.loaders import PRELOADED
from src.data.pytorch_dataset import OceanDataset, ocean_fields
from src.data.s3_server import FOLDER, connect
from src.data.store import open_fields, open_store
from src.data.windows import WindowGrid, find_period
from src.model.lightning_module import AutoencoderModule
from src.model.pytorch_model import MaskedAutoencoder
from src.run.cloud_folder import CloudFolder
from src.run.config import CHAPTER, parse_config
from src.run.errors import UserError, one_line_errors
from tests.fault_proxy import Fault, FaultyProxy
from tests.own_training import OwnData, OwnModule
from tests.runs import TINY, call

OCEAN = f"-c={CHAPTER}/tests/ocean.yaml"
BAD = torch.linspace(48, 52, 512).view(2, 4, 8, 8)  # normalised values


@pytest.fixture
def study():
    return pytest.importorskip("study", reason="needs uv sync --group study")


def test_a_score_compares_models(study):
    """Whatever their patches and ratio.

    Broken by: no `model.mask_ratio = 0.0`; BLOCK from the model.
    """
    dataset = OceanDataset("val")

    def score(gain, **settings):
        torch.manual_seed(0)
        model = MaskedAutoencoder(dataset.sample_shape, **settings)
        model.decoder.head.weight.data *= gain
        return study.score(model, dataset)

    assert score(0, patch_size=(3, 4, 4)) == score(0, patch_size=(3, 8, 8)) > 0.5
    assert score(1, mask_ratio=0.5) == score(1, mask_ratio=0.9)


@pytest.mark.slow
def test_a_study_goes_on_and_writes_the_best(monkeypatch, tmp_path, study):
    """With what differs from the configuration.

    Broken by: no load_if_exists; a trial that is worse and not pruned; a best.yaml without
    overrides.
    """
    monkeypatch.setattr("short_run.CHAPTER", tmp_path)
    short = [OCEAN, "--trainer.max_epochs=1"]
    monkeypatch.setattr(study, "TRIALS", 2)
    call(monkeypatch, *short, script=study)
    never = study.optuna.pruners.ThresholdPruner(upper=0)
    monkeypatch.setattr(study.optuna.pruners, "MedianPruner", lambda **_: never)
    monkeypatch.setattr(study, "TRIALS", 1)
    call(monkeypatch, *short, script=study)
    folder = tmp_path / "output" / "study" / "small"
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["COMPLETE", "COMPLETE", "PRUNED"]
    config, _ = parse_config("", [f"-c={folder}/best.yaml"], *lightning_train.CLASSES)
    assert str(config.optimizer.lr) == rows[0]["lr"]
    # Also what the user gave, so that one file says it all.
    assert config.data.dataset.keywords["train_stride"] == (3, 2, 20)
    assert config.trainer.max_epochs == 1
    assert len(list(folder.glob("*.png"))) == 2
    # Broken by: no look at the study's settings, after which other data are ranked with these.
    with pytest.raises(UserError, match="other settings"):
        call(monkeypatch, *short, "--model.depth=1", script=study)


def test_preflight(monkeypatch, capsys):
    """Every fault is named, in time.

    Broken by: no limit of a request (the stall); `and` for `or` in sample; validations in the
    steps.
    """
    # Each validation takes an hour of this clock. An epoch has four steps, two of them are tried.
    hours = []
    validate = AutoencoderModule.on_validation_epoch_end
    monkeypatch.setattr(
        AutoencoderModule,
        "on_validation_epoch_end",
        lambda *a: hours.append(1) or validate(*a),
    )
    monkeypatch.setattr(
        short_run, "perf_counter", lambda: perf_counter() + 3600 * len(hours)
    )
    assert call(monkeypatch, TINY, script=preflight) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", name] for name in preflight.CHECKS
    ]
    assert len(hours) > 1
    (step,) = (line.split()[2] for line in lines if " step " in line)
    assert float(step) < 60
    monkeypatch.setattr("src.run.cloud_folder.TIMEOUT", 2)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wrong = [
        "--trainer.wandb=online",
        "--trainer.devices=3",
        "--trainer.precision=16-mixed",
        "--data.num_workers=2",
    ]
    monkeypatch.setattr("shutil.disk_usage", lambda _: mock.Mock(free=1))
    monkeypatch.setattr(preflight, "SHM", CHAPTER)  # macOS has none
    monkeypatch.setattr(
        "src.data.pytorch_dataset.DummyDataset.__getitem__", lambda *_: (BAD, 0)
    )
    # The process that loaders' workers are copies of keeps its environment, for later tests, too.
    forkserver.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()
    with FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        proxy.faults = [Fault("stall", 10_000)]
        assert call(monkeypatch, TINY, *wrong, script=preflight) == 1
    failed = {
        line.split()[1]
        for line in capsys.readouterr().out.splitlines()
        if "FAIL" in line
    }
    assert failed == {*preflight.CHECKS} - {"device"}


def test_preflight_names_rows_that_are_never_read():
    """Broken by: no rows_never_read; a stride that divides is not named."""
    time = pd.date_range("2000", periods=12, freq="MS")
    fields = xr.Dataset(coords={"time": time, "lat": range(96), "lon": range(128)})
    for stride, named in ((64, "; NO WINDOW has the last 32 of 96 lat"), (32, "")):
        grid = WindowGrid(fields, (1, 64, 64), (1, stride, 64), slice(0, 12))
        assert preflight.rows_never_read(grid) == named


# The frequency, the grid, and what each split has to reach.
PERIODIC = {"real": ("MS", (64, 64), "month"), "era5": ("h", (721, 1440), "hour")}


@pytest.mark.parametrize("name", PERIODIC)
def test_settings_reach_each_month_hour_and_row(name):
    """Or best.ckpt is that of one season. Broken by: a val_stride of 12 months, or of 24 hours."""
    frequency, (height, width), unit = PERIODIC[name]
    words = [
        f"-c={CHAPTER}/config/{file}.yaml" for file in dict.fromkeys(["real", name])
    ]
    data = parse_config("", words, *lightning_train.CLASSES)[0].data.dataset.keywords
    time = pd.date_range("1980", "2020", freq=frequency)
    sizes = {"time": time, "lat": range(height), "lon": range(width)}
    for split in ("train", "val"):
        period = find_period(time, data[f"{split}_period"])
        stride = data[f"{split}_stride"]
        fields = xr.Dataset(coords=sizes)
        grid = WindowGrid(fields, data["window"], stride, period, wrap_longitude=True)
        steps, rows, columns = grid.starts
        assert {getattr(time[step], unit) for step in steps} == {*getattr(time, unit)}
        assert rows[-1] + grid.window[1] == height
        assert columns[-1] + grid.window[2] == width


def test_preflight_of_own_classes(monkeypatch, tmp_path, capsys):
    """Broken by: no OWN_DATA in a check; a train_loss, too; a data section that has to be there."""

    class NoArguments(OwnData):
        def __init__(self):
            super().__init__()

    # As if lightning_train.py had other imports.
    classes = {"AutoencoderModule": OwnModule, "FieldDataModule": NoArguments}
    for name, own in classes.items():
        monkeypatch.setattr(lightning_train, name, own)
    settings = lightning_train.LightningSettings
    monkeypatch.setattr(lightning_train, "CLASSES", (*classes.values(), settings))
    (tmp_path / "own.yaml").write_text("trainer: {max_epochs: 1, accelerator: cpu}")
    settings = [f"-c={tmp_path}/own.yaml", "--trainer.wandb=online"]
    account = mock.Mock(**{"return_value.viewer.username": "me"})
    monkeypatch.setattr(preflight.wandb, "Api", account)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert call(monkeypatch, *settings, script=preflight) == 0
    lines = capsys.readouterr().out
    assert lines.count(preflight.OWN_DATA) == 2
    assert "can be written, read and listed" in lines
    assert "ok    wandb    online, as me" in lines

    # A checkpoint that no resume could read.
    class WithFolder(OwnModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"folder": tmp_path})

    monkeypatch.setattr(lightning_train, "AutoencoderModule", WithFolder)
    classes = (WithFolder, NoArguments, lightning_train.LightningSettings)
    monkeypatch.setattr(lightning_train, "CLASSES", classes)
    assert call(monkeypatch, *settings, script=preflight) == 1
    assert "write hyper_parameters.folder as str" in capsys.readouterr().out


def test_secrets_are_written_nowhere(monkeypatch, tmp_path, capfd):
    """Of a run, one that is refused, one whose worker fails, and the server.

    Broken by: the environment in config.yaml, or in an error's line; a key in its address.
    """
    server = connect()
    planted = {
        "AWS_SECRET_ACCESS_KEY": "1planted" + "0" * 32,
        "WANDB_API_KEY": "2" * 40,
    }
    for name, secret in planted.items():
        monkeypatch.setenv(name, secret)
    runs = f"s3://embedded/{tmp_path.name}"
    words = [TINY, f"--trainer.output_dir={tmp_path}", "--trainer.wandb=offline"]
    words += [f"--trainer.cloud_storage_path={runs}", "--trainer.run_name=run"]
    call(monkeypatch, *words)
    worker = ["--data.dataset=tests.stalled.FailingDataset", "--data.num_workers=1"]
    name = "--trainer.run_name"
    with pytest.raises(SystemExit, match="space left on device") as no_space:
        with one_line_errors():
            call(monkeypatch, *words, *worker, f"{name}=failing")
    folder = CloudFolder(f"{runs}/run")
    monkeypatch.setattr("src.data.store.connect", lambda: server | planted)
    with pytest.raises(UserError, match=f"^{runs}/other: PermissionError") as denied:
        call(monkeypatch, *words, f"{name}=other")

    errors = (no_space.value, denied.value)
    texts = ["".join(map(str, (*errors, *capfd.readouterr()))).encode()]
    texts += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    objects = folder.request("_find", folder.path)
    texts += [folder.request("_cat_file", path) for path in objects]
    assert len(texts) > 15
    # The server's own log has the key's name, which is no secret.
    assert not any(server["AWS_ACCESS_KEY_ID"].encode() in text for text in texts)
    texts.append((FOLDER / "server.log").read_bytes())
    for secret in (*planted.values(), server["AWS_SECRET_ACCESS_KEY"]):
        assert not any(secret.encode() in text for text in texts)


def test_a_study_of_another_window_ends_at_once(monkeypatch, study):
    """Not after an epoch. Broken by: no comparison in main."""
    monkeypatch.setattr(study, "BLOCK", (5, 8, 8))
    with pytest.raises(UserError, match=r"BLOCK .* has to divide the window"):
        call(monkeypatch, OCEAN, script=study)


def test_a_store_for_each_year_is_joined(tmp_path):
    """By the README's script.

    Broken by: range(1980, 1982) there; select after concat, when a year without u10 reads as NaN.
    """
    blocks = re.findall(
        r"```python\n(.*?)```", (CHAPTER / "README.md").read_text(), re.DOTALL
    )
    (script,) = [block for block in blocks if "xr.concat" in block]
    for old, new in [("s3://YOUR-BUCKET", str(tmp_path)), ("2020", "1983")]:
        script = script.replace(old, new)
    script = script.replace("2011-12", "1981-12")
    ocean = ocean_fields()["surface_temperature"].isel(time=slice(36)).drop_encoding()
    ocean["time"] = pd.date_range("1980-01", periods=36, freq="MS")
    fields = xr.Dataset({"t2m": ocean, "u10": 2 * ocean})
    for year, part in fields.groupby("time.year"):
        part.to_zarr(tmp_path / f"{year}.zarr")
    exec(script, {})
    joined = open_fields(open_store(str(tmp_path / "era5.zarr")))
    xr.testing.assert_equal(joined.load(), fields.reset_coords(drop=True))
    shutil.rmtree(tmp_path / "1982.zarr")
    fields[["t2m"]].isel(time=slice(24, 36)).to_zarr(tmp_path / "1982.zarr")
    with pytest.raises(UserError, match=r"1982\.zarr"):
        exec(script, {})
