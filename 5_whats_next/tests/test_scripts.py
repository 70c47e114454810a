"""The scripts around a training: experiments, preflight, encode; schedules."""

import json

import encode
import experiments
import numpy as np
import preflight
import pytest
import torch
import xarray as xr
import yaml
from torch.optim import lr_scheduler

from src.run.config import CHAPTER, parse_config
from src.run.errors import UserError
from src.run.optim import make_optimizer
from tests.runs import TINY, call, saved, train

NO_CLOUD = "--trainer.cloud_storage_path=none"
OCEAN = f"-c={CHAPTER}/tests/ocean.yaml"


def test_rows_of_a_file_are_trained_once(monkeypatch, tmp_path, capsys):
    """One that fails does not end the others; a file has no typos.

    Broken by: no except in experiments.train; no config.yaml in its comparison.
    """
    monkeypatch.setattr(experiments, "CHAPTER", tmp_path)
    trained = []
    real = experiments.build_training
    record = lambda *a, **k: trained.append(a[1].name) or real(*a, **k)  # noqa: E731
    monkeypatch.setattr(experiments, "build_training", record)
    file = tmp_path / "rates.yaml"
    rows = {"first": {}, "second": {"optimizer": {"lr": 0.1}}}
    rows["third"] = {"optimizer": {"lr": 1e30}}
    for _ in range(3):
        file.write_text(json.dumps(rows))
        call(monkeypatch, str(file), TINY, script=experiments)
        rows["second"] = {"seed_everything": 1}
    # The third fails, and is tried again by each command.
    assert " ".join(trained) == "first second third second third third"
    shown = capsys.readouterr().out
    assert "the validation loss is nan" in shown
    assert (tmp_path / "output" / "experiments" / "rates" / "curves.png").exists()
    file.write_text("{typo: {optimizer: {rate: 1}}}")
    with pytest.raises(UserError, match="rate"):
        call(monkeypatch, str(file), TINY, script=experiments)


@pytest.mark.parametrize("path", (CHAPTER / "experiments").glob("*.yaml"))
def test_the_files_of_experiments(path):
    """Broken by: a key that is not there."""
    for settings in yaml.safe_load(path.read_text()).values():
        parse_config("", experiments.CLASSES, [f"-c={json.dumps(settings)}"])


def test_the_preflight(monkeypatch, tmp_path, capsys):
    """What is right, and the first thing that is wrong. Broken by: no ERRORS in check."""
    output = f"--trainer.output_dir={tmp_path}"
    assert call(monkeypatch, TINY, output, script=preflight) == 0
    lines = capsys.readouterr().out.splitlines()
    checks = [line.split()[1] for line in lines if line.startswith("ok")]
    names = ["device", "training", "validation", "checkpoint", "cloud", "estimate"]
    assert checks == names
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cloud: Could not connect"):
        call(monkeypatch, TINY, output, script=preflight)


def test_features_are_in_the_order_of_the_patches(monkeypatch, tmp_path):
    """From the disk and from the cloud. Without blocks a feature is that of its patch alone.

    Broken by: no ids_restore in MaskedAutoencoder.encode; no sampler in Loaders.in_order.
    """
    short = ["--trainer.max_epochs=1", "--model.depth=0"]
    folder = train(monkeypatch, tmp_path, OCEAN, *short)
    name = saved(folder)["callbacks"]["CloudUploadCallback"]["run_name"]
    for run, to in ((folder, "a.nc"), (f"s3://embedded/checkpoints/{name}", "b.zarr")):
        words = [str(run), f"{tmp_path}/{to}", "--tokens"]
        call(monkeypatch, *words, script=encode)
    features = xr.load_dataset(tmp_path / "a.nc")
    xr.testing.assert_equal(features, xr.open_zarr(tmp_path / "b.zarr").load())

    model, loaders = encode.open_run(str(folder), [])
    values, valid = model.to_patches(loaders.val_set[3][0][None])
    patch = torch.cat([values, valid], dim=-1)
    tokens = model.encoder.norm(model.encoder.embed(patch) + model.encoder.positions)
    expected = tokens.where(valid.any(-1)[..., None], torch.nan).detach()
    np.testing.assert_allclose(features.features[3], expected[0], rtol=1e-5)
    _, lat, lon = loaders.val_set.coordinates(3)
    assert (features.lat[3], features.lon[3]) == (lat.mean(), lon.mean())


def test_features_of_another_period(monkeypatch, tmp_path):
    """The mean of a window's patches. Broken by: no windows_of in encode.main."""
    folder = train(monkeypatch, tmp_path, OCEAN, "--trainer.max_epochs=1", NO_CLOUD)
    to = f"{tmp_path}/c.nc"
    words = ["--period", "2006-04", "2007-09", "--stride", "6", "16", "100"]
    call(monkeypatch, str(folder), to, *words, script=encode)
    features = xr.load_dataset(to)
    assert features.features.shape == (2 * 1 * 5, 16)
    assert features.time.dt.year.values[0] == 2006


def rates(scheduler, steps: int) -> list[float]:
    """Those of the next steps."""
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("schedule", ["restarts", "one-cycle"])
def test_schedules_are_those_of_pytorch_and_go_on(schedule):
    """Broken by: periods of the whole training in make_optimizer."""
    model = torch.nn.Linear(2, 2)
    settings = {"lr": 0.1, "warmup_fraction": 0.1, "schedule": schedule, "periods": 3}
    whole = rates(make_optimizer(model, 100, **settings)[1], 100)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    if schedule == "restarts":
        expected = rates(lr_scheduler.CosineAnnealingWarmRestarts(sgd, 30), 90)
        assert whole[:10] == pytest.approx([0.1 * step / 11 for step in range(1, 11)])
        assert whole[10:] == pytest.approx(expected)
    else:
        assert whole == rates(lr_scheduler.OneCycleLR(sgd, 0.1, 100), 100)

    _, stopped = make_optimizer(model, 100, **settings)
    rates(stopped, 57)
    _, resumed = make_optimizer(model, 100, **settings)
    resumed.optimizer.load_state_dict(stopped.optimizer.state_dict())
    resumed.load_state_dict(stopped.state_dict())
    assert rates(resumed, 43) == whole[57:]
