"""The study, the preflight; and secrets, which no run may write anywhere."""

import csv
from unittest import mock

import compare_schedules
import lightning_train
import pandas as pd
import preflight
import pytest
import short_run
import torch
import xarray as xr
import yaml
from jsonargparse import Namespace

from src.cloud_folder import CloudFolder
from src.config import CHAPTER, parse_config
from src.data.pytorch_dataset import OceanDataset
from src.data.s3_server import FOLDER, connect
from src.data.windows import WindowGrid, find_period
from src.errors import UserError, one_line_errors
from src.model.pytorch_model import MaskedAutoencoder
from tests.fault_proxy import Fault, FaultyProxy
from tests.own_training import OwnData, OwnModule
from tests.runs import TINY, call

OCEAN = f"-c={CHAPTER}/tests/ocean.yaml"
BAD = torch.linspace(48, 52, 512).view(2, 4, 8, 8)  # normalised values


@pytest.fixture
def study():
    return pytest.importorskip("study", reason="needs uv sync --group study")


# Whatever their patches and ratio. Broken by: no `model.mask_ratio = 0.0`; BLOCK from the model.
def test_a_score_compares_models(study):
    dataset = OceanDataset("val")

    def score(gain, **settings):
        torch.manual_seed(0)
        model = MaskedAutoencoder(dataset.sample_shape, **settings)
        model.decoder.head.weight.data *= gain
        return study.score(model, dataset)

    assert score(0, patch_size=(3, 4, 4)) == score(0, patch_size=(3, 8, 8)) > 0.5
    assert score(1, mask_ratio=0.5) == score(1, mask_ratio=0.9)


# Broken by: defaults as options in front of the user's; own_overrides without the file.
@pytest.mark.parametrize(
    ("words", "epochs", "dataset"),
    [
        ([], 3, "OceanDataset"),
        (["--trainer.max_epochs=7"], 7, "OceanDataset"),
        (["-c=mine.yaml"], 3, "DummyDataset"),
    ],
)
def test_defaults_lose_to_the_user(monkeypatch, tmp_path, words, epochs, dataset):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("data: {dataset: DummyDataset}")
    monkeypatch.setattr("sys.argv", ["a_script.py", *words])
    defaults = {"trainer.max_epochs": 3, "data.dataset": "OceanDataset"}
    options, config = short_run.read_options("", {}, defaults)
    assert options.own_overrides == words
    assert config.trainer.max_epochs == epochs
    assert type(config.data.dataset("val")).__name__ == dataset


def test_scripts_of_one_device_refuse_several(monkeypatch):
    """Each rank would run the script. Broken by: no check_one_device."""
    with pytest.raises(UserError, match="this script trains on one device"):
        call(monkeypatch, TINY, "--trainer.devices=2", script=compare_schedules)


# Broken by: no load_if_exists; a trial that is worse and not pruned.
@pytest.mark.slow
def test_a_study_goes_on_and_writes_the_best(monkeypatch, tmp_path, study):
    monkeypatch.setattr("short_run.CHAPTER", tmp_path)
    call(monkeypatch, OCEAN, "--trials=2", "--trainer.max_epochs=2", script=study)
    never = study.optuna.pruners.ThresholdPruner(upper=0)
    monkeypatch.setattr(study.optuna.pruners, "MedianPruner", lambda **_: never)
    call(monkeypatch, OCEAN, "--trials=1", "--trainer.max_epochs=2", script=study)
    folder = tmp_path / "output" / "study" / "small"
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["COMPLETE", "COMPLETE", "PRUNED"]
    config, _ = parse_config("", [f"-c={folder}/best.yaml"], *lightning_train.CLASSES)
    assert str(config.optimizer.lr) == rows[0]["lr"]
    assert len(list(folder.glob("*.png"))) == 2


def test_a_study_of_which_no_trial_is_complete(monkeypatch, tmp_path, study):
    """Killed, and then failed. Broken by: `if not study.trials` in main; no states in report."""
    monkeypatch.setattr("short_run.CHAPTER", tmp_path)
    ends = [SystemExit(143), UserError("diverged")]
    rates = []

    def objective(trial, _):
        rates.append(study.suggest(trial)["optimizer.lr"])
        raise ends[len(rates) - 1]

    monkeypatch.setattr(study, "objective", objective)
    with pytest.raises(SystemExit):
        call(monkeypatch, OCEAN, "--trials=1", script=study)
    with pytest.raises(UserError, match="small: no trial is complete"):
        call(monkeypatch, OCEAN, "--trials=1", script=study)
    assert rates == [study.FIRST["lr"]] * 2


# Broken by: no limit in attempt (the stall); `and` for `or` in sample.
def test_preflight(monkeypatch, capsys):
    monkeypatch.setattr(preflight, "TIMEOUT", 30)
    assert call(monkeypatch, TINY, "--price_per_hour=20", script=preflight) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", name] for name in preflight.CHECKS
    ]
    monkeypatch.setattr(preflight, "TIMEOUT", 2)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wrong = [
        "--trainer.wandb=online",
        "--trainer.devices=3",
        "--trainer.precision=16-mixed",
        "--data.num_workers=2",
    ]
    monkeypatch.setattr("shutil.disk_usage", lambda _: mock.Mock(free=1))
    monkeypatch.setattr(
        "src.data.pytorch_dataset.DummyDataset.__getitem__", lambda *_: (BAD, 0)
    )
    with FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        proxy.faults = [Fault("stall", 10_000)]
        assert call(monkeypatch, TINY, *wrong, script=preflight) == 1
    failed = {
        line.split()[1]
        for line in capsys.readouterr().out.splitlines()
        if "FAIL" in line
    }
    assert failed == {
        *("precision", "batch", "sample", "shm", "step"),
        *("checkpoint", "disk", "cloud", "wandb"),
    }


def test_the_real_training_validates_every_calendar_month():
    """best.ckpt would be that of one season. Broken by: a val_stride of 12 months."""
    text = (CHAPTER / "config" / "real.yaml").read_text()
    data = yaml.safe_load(text)["data"]["dataset"]["init_args"]
    time = pd.date_range("1980-01", "2019-12", freq="MS")
    fields = xr.Dataset(coords={"time": time, "lat": range(64), "lon": range(64)})
    period = find_period(time, data["val_period"])
    grid = WindowGrid(fields, data["window"], data["val_stride"], period)
    assert {time[grid.slices(n)[0]][0].month for n in range(len(grid))} == {
        *range(1, 13)
    }


def test_the_settings_for_era5_reach_each_hour_and_row():
    """Broken by: a train_stride of 24 hours, or of 64 rows as in real.yaml."""
    words = [f"-c={CHAPTER}/config/{name}.yaml" for name in ("real", "era5")]
    data = parse_config("", words, *lightning_train.CLASSES)[0].data.dataset.keywords
    time = pd.date_range("1980", "2020", freq="h")
    fields = xr.Dataset(coords={"time": time, "lat": range(721), "lon": range(1440)})
    for split in ("train", "val"):
        period = find_period(time, data[f"{split}_period"])
        stride = data[f"{split}_stride"]
        grid = WindowGrid(fields, data["window"], stride, period, wrap_longitude=True)
        steps, rows, columns = grid.starts
        assert {time[step].hour for step in steps} == {*range(24)}
        assert rows[-1] + grid.window[1] == 721
        assert columns[-1] + grid.window[2] == 1440


def test_devices_share_an_epoch(monkeypatch):
    """Broken by: steps_per_epoch of one device, or the number of devices after it is set to 1."""
    run = mock.Mock(ends=range(preflight.STEPS), steps_per_epoch=800)  # a second each
    monkeypatch.setattr(preflight, "short_training", lambda *_: run)
    trainer = Namespace(devices=4, num_nodes=2, max_epochs=9)
    config = Namespace(data=Namespace(batch_size=512), trainer=trainer)
    said = preflight.check_step(preflight.Plan(config, price_per_hour=2))
    assert said == "1.000 s; an epoch 100 s; the training 0.25 h, price 0.50"
    assert config.data.batch_size == 64


def test_seconds_are_those_of_any_device(monkeypatch):
    """Broken by: torch.cuda in wait_for_device."""
    monkeypatch.setattr(torch, "accelerator", mock.Mock())
    short_run.wait_for_device()
    torch.accelerator.synchronize.assert_called_once()


def test_a_corner_of_land_is_no_fault():
    """Broken by: a look at sample 0 alone, or at the same place in eight months."""

    class Corner(list):
        def __getitem__(self, number):
            x = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(number))
            return (x * torch.nan if number % 16 == 0 else x), number

    loaders = mock.Mock(train_set=Corner(range(128)))
    assert "mean" in preflight.check_sample(preflight.Plan(None, 0, loaders))


def test_preflight_of_own_classes(monkeypatch, tmp_path, capsys):
    """Broken by: no OWN_DATA in a check; no names() in check_cloud; a train_loss, too."""
    # As if lightning_train.py had other imports.
    classes = {"AutoencoderModule": OwnModule, "FieldDataModule": OwnData}
    for name, own in classes.items():
        monkeypatch.setattr(lightning_train, name, own)
    for module in (lightning_train, short_run):
        settings = lightning_train.LightningSettings
        monkeypatch.setattr(module, "CLASSES", (*classes.values(), settings))
    (tmp_path / "own.yaml").write_text("trainer: {max_epochs: 1, accelerator: cpu}")
    settings = [f"-c={tmp_path}/own.yaml", "--trainer.wandb=online"]
    account = mock.Mock(**{"return_value.viewer.username": "me"})
    monkeypatch.setattr(preflight.wandb, "Api", account)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert call(monkeypatch, *settings, script=preflight) == 0
    lines = capsys.readouterr().out
    assert lines.count(preflight.OWN_DATA) == 4
    assert "can be written, read and listed" in lines
    assert "ok    wandb      online, as me" in lines
    account.side_effect = ValueError("unknown key")
    denied = mock.Mock(side_effect=UserError("AccessDenied"))
    monkeypatch.setattr(CloudFolder, "names", denied)
    assert call(monkeypatch, *settings, script=preflight) == 1
    lines = capsys.readouterr().out
    assert "FAIL  wandb      unknown key" in lines
    assert "FAIL  cloud      AccessDenied" in lines


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
        call(monkeypatch, OCEAN, "--trials=0", script=study)
