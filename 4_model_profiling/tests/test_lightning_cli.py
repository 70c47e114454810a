"""LightningCLI: fit, validate, test, predict, and the help."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml
from src.config import CHAPTER
from src.data.pytorch_dataset import OceanDataset

from tests.lightning_runs import OCEAN, assert_same_lightning_run, call_cli, run_cli
from tests.runs import rows

OCEAN_CLI = [
    word for word in OCEAN if not word.startswith(("--trainer.picture", "--trainer.wandb"))
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """The folder of a run; its best epoch is the last one."""
    output = tmp_path_factory.mktemp("fitted")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert run_cli(monkeypatch, "fit", output) == 0
    return output / "run_1"


def val_losses(folder: Path) -> list[float]:
    return [float(row["val_loss"]) for row in rows(folder) if row["val_loss"]]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture
def two_runs(monkeypatch, tmp_path, fitted) -> Path:
    """A folder with a copy of that run, and a newer one with other weights."""
    shutil.copytree(fitted, tmp_path / "run_1")
    assert run_cli(monkeypatch, "fit", tmp_path, "--trainer.max_epochs=1") == 0
    best = tmp_path / "run_2" / "checkpoints" / "best.ckpt"
    later = best.stat().st_mtime + 10  # some filesystems count whole seconds
    os.utime(best, (later, later))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("named", [None, "run_1", "run_2"])
def test_validate_the_newest_run_or_a_named_checkpoint(monkeypatch, two_runs, capsys, named):
    """Prints the scores, and begins no run."""
    asked = [f"--ckpt_path={two_runs / named / 'checkpoints' / 'best.ckpt'}"] if named else []
    capsys.readouterr()
    assert run_cli(monkeypatch, "validate", two_runs, *asked) == 0
    printed = re.search(r"val_loss\W+([\d.]+)", capsys.readouterr().out)
    expected = min(val_losses(two_runs / (named or "run_2")))
    assert float(printed[1]) == pytest.approx(expected, rel=1e-6)
    assert {path.name for path in two_runs.iterdir()} == {"run_1", "run_2"}


@pytest.mark.slow
@pytest.mark.parametrize("named", [None, "run_1"])
def test_test_scores_beside_the_baselines(monkeypatch, two_runs, named):
    """The same as after the training; the run that was tested stays as it was."""
    asked = [f"--ckpt_path={two_runs / named / 'checkpoints' / 'best.ckpt'}"] if named else []
    tested = two_runs / (named or "run_2")
    before = {path: path.read_bytes() for path in tested.rglob("*") if path.is_file()}
    assert run_cli(monkeypatch, "test", two_runs, *asked) == 0
    assert summary(two_runs / "run_3")["validation"] == summary(tested)["validation"]
    assert {path: path.read_bytes() for path in before} == before


def test_model_is_the_checkpoints(monkeypatch, tmp_path, fitted):
    """Whatever the configuration says: its weights fit no other model."""
    asked = f"--ckpt_path={fitted / 'checkpoints' / 'best.ckpt'}"
    assert run_cli(monkeypatch, "test", tmp_path, asked, "--model.embed_dim=32") == 0
    assert summary(tmp_path / "run_1")["validation"] == summary(fitted)["validation"]


def test_predict_writes_physical_values(monkeypatch, tmp_path):
    """Visible values are the data's, hidden ones are flagged, land is empty."""
    settings = [*OCEAN_CLI, f"--trainer.logger.init_args.output_dir={tmp_path}"]
    assert call_cli(monkeypatch, "fit", *settings, "--trainer.max_steps=1") == 0
    asked = f"--ckpt_path={tmp_path / 'run_1' / 'checkpoints' / 'last.ckpt'}"
    assert call_cli(monkeypatch, "predict", *settings, asked) == 0
    strides = [word.rpartition(".")[2].split("=") for word in OCEAN if "_stride" in word]
    dataset = OceanDataset("val", **{key: json.loads(value) for key, value in strides})
    (name,), (unit,) = dataset.variables, dataset.units
    with xr.open_dataset(tmp_path / "run_2" / "predictions-0.nc") as predicted:
        assert predicted[name].dims == ("sample", "step", "y", "x")
        assert predicted[name].units == unit
        assert predicted["sample"].values.tolist() == list(range(len(dataset)))
        values, hidden = predicted[name].values, predicted["hidden"].values.astype(bool)
        places = {key: predicted[key].values for key in ("time", "lat", "lon")}
    x = np.stack([np.asarray(dataset[i][0])[0] for i in range(len(dataset))])
    truth, land = x * dataset.std[0] + dataset.mean[0], np.isnan(x)
    assert np.array_equal(np.isnan(values), land)
    visible = ~hidden & ~land
    np.testing.assert_allclose(values[visible], truth[visible], rtol=1e-5)
    assert np.mean(values[hidden & ~land] == truth[hidden & ~land]) < 0.01
    assert 0.7 < hidden[~land].mean() < 0.8
    for key, found in places.items():
        assert np.array_equal(found[3], getattr(dataset.coordinates(3), key)), key


@pytest.mark.slow(copies=True)
def test_config_repeats_the_run(monkeypatch, tmp_path, fitted):
    where = f"--trainer.logger.init_args.output_dir={tmp_path}"
    assert call_cli(monkeypatch, "fit", f"--config={fitted / 'config.yaml'}", where) == 0
    assert_same_lightning_run(fitted, tmp_path / "run_1")
    ours, theirs = (
        yaml.safe_load((folder / "config.yaml").read_text())
        for folder in (tmp_path / "run_1", fitted)
    )
    ours["trainer"]["logger"] = theirs["trainer"]["logger"] = None  # where it lies
    assert ours == theirs


def test_files_are_chapter_0s(fitted):
    names = {str(path.relative_to(fitted)) for path in fitted.rglob("*")}
    assert names >= {"metrics.csv", "summary.json", "config.yaml", "curves.png"}
    assert names >= {"reconstructions.png", "checkpoints/best.ckpt", "checkpoints/last.ckpt"}


def helped(monkeypatch, capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        call_cli(monkeypatch, *arguments)
    assert caught.value.code in (0, None)
    return capsys.readouterr().out


def test_config_without_being_named(monkeypatch, capsys):
    """Without -c it is config/cli_config.yaml."""
    named = f"--config={CHAPTER / 'config' / 'cli_config.yaml'}"
    default = helped(monkeypatch, capsys, "fit", "--print_config")
    assert default == helped(monkeypatch, capsys, "fit", named, "--print_config")
    assert yaml.safe_load(default)["optimizer"]["lr"] == 4e-3


def test_help_teaches(monkeypatch, capsys):
    """Commands that can be pasted, the subcommands, and each section with what it is."""
    text = helped(monkeypatch, capsys, "--help")
    for expected in ("-m lightning_trainer fit", "fit,validate,test,predict", "predict"):
        assert expected in text
    text = helped(monkeypatch, capsys, "fit", "--help")
    for section in ("model.mask_ratio", "data.batch_size", "optimizer.lr", "trainer.strategy"):
        assert re.search(rf"--{section} .*\n? +\w+", text), section
    for expected in ("number of encoder blocks", "samples in one optimiser step", "--ckpt_path"):
        assert expected in text
