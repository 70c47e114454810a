"""Choosing settings: what is taken, what is never touched, and what is left when it breaks off."""

import contextlib
import json
import re
import subprocess
import sys

import choose_settings as choose
import numpy as np
import pytest
import settings_search as search
import torch
import yaml
from benchmark_datapipeline_configurations import COLUMNS
from src.config import CHAPTER, parse_config
from src.data.loaders import make_loaders
from src.errors import UserError

from tests.cloud_stores import SMALL
from tests.fast_stores import url as url  # a fixture

TRAINED = {"batch_size": 4, "persistent_workers": False, "multiprocessing_context": "spawn"}


@pytest.fixture
def config(url, tmp_path):
    """A train config of the fast reader for a small store with a packed copy."""
    small = {key: list(value) for key, value in SMALL.items()}
    dataset = {
        "class_path": "src.data.fast_dataset.FastDataset",
        "init_args": {"url": url, **small},
    }
    content = {
        "model": {"patch_size": [3, 2, 2]},
        "data": {"dataset": dataset, **TRAINED},
        "trainer": {"max_epochs": 1},
    }
    place = tmp_path / "config.yaml"
    place.write_text(yaml.safe_dump(content))
    return place


@pytest.fixture
def measured(monkeypatch):
    """Made-up results instead of processes; ``speeds`` are those of settings, by name."""
    monkeypatch.setattr(choose, "connect", lambda: None)
    speeds, asked = {}, []

    def run(configuration, timeout):
        kept = {"num_workers", "prefetch_factor"} & configuration.keys()
        settings = {key: configuration[key] for key in kept} | configuration["dataset_args"]
        values = [v for (key, value), v in speeds.items() if settings.get(key) == value]
        asked.append(configuration)
        found = np.prod([v(len(asked)) if callable(v) else v for v in values])
        if found <= 0:
            return {"error": "MemoryError: no room"}
        result = {key: 1.0 for _, key, _, _ in COLUMNS} | {"waits": [0.1], "steps": [0.1]}
        return result | {"samples_per_second": 100 * float(found), "busy": min(1.0, 0.4 * found)}

    monkeypatch.setattr(search, "run_once", run)
    return speeds, asked


def same_training(one, other, epochs=(0, 1)) -> None:
    """Two configs: the same order of indices, and the same samples to the bit."""
    batches = []
    for file in (one, other):
        parsed, _ = parse_config("", ["--config", str(file)])
        assert parsed.data.batch_size == 4
        with make_loaders(**vars(parsed.data), seed=parsed.seed_everything) as loaders:
            served = []
            for epoch in epochs:
                loaders.sampler.epoch, loaders.sampler.start = epoch, 0
                served += [(index.tolist(), x.numpy().tobytes()) for x, index in loaders.train]
            batches.append(served)
    assert len(batches[0]) > 10
    assert batches[0] == batches[1]


def test_recommended_config_gives_the_same_training(config, measured, tmp_path, capsys):
    """Although all settings of the reader have changed; the rest of the file is what it was."""
    speeds, asked = measured
    speeds |= {("packed", True): 1.2, ("cache_mb", 64): 1.3, ("batches_ahead", 8): 1.4}
    speeds |= {("concurrency", 128): 1.1, ("num_workers", 1): 0.5, ("num_workers", 2): 0}
    output = tmp_path / "new" / "recommended.yaml"
    choose.main(str(config), str(output), repeats=2)
    written, given = (yaml.safe_load(file.read_text()) for file in (output, config))
    arguments = written["data"]["dataset"]["init_args"]
    changed = {"packed": True, "cache_mb": 64, "batches_ahead": 8, "concurrency": 128}
    assert {key: arguments.pop(key) for key in changed} == changed
    assert written == given
    same_training(config, output)
    windows = [c["dataset_args"].get("window") for c in asked if c["batch_size"] == 4]
    assert windows == [list(SMALL["window"])] * len(asked)
    said = capsys.readouterr().out
    assert re.search(r"^num_workers 2 +failed: MemoryError: no room", said, re.MULTILINE)
    assert "busy 40.0%, 100 samples/s as configured; 96.1%, 240 samples/s as recommended" in said
    assert said.endswith(f"lightning_train.py -c {choose.os.path.relpath(output)}\n")
    comment = output.read_text().partition("model:")[0]
    assert "choose_settings.py" in comment
    assert f"torch {torch.__version__.partition('+')[0]}" in comment


@pytest.mark.slow
def test_workers_give_the_same_training(config, measured, tmp_path):
    speeds, _ = measured
    speeds |= {("num_workers", 1): 1.4, ("prefetch_factor", 4): 1.3}
    output = tmp_path / "recommended.yaml"
    choose.main(str(config), str(output), repeats=2)
    data = yaml.safe_load(output.read_text())["data"]
    assert (data["num_workers"], data["prefetch_factor"]) == (1, 4)
    same_training(config, output, epochs=[1])


def test_fewer_workers_win_a_tie(config, measured, tmp_path, capsys):
    """A config with eight of them that a model never waits for."""
    speeds, _ = measured
    speeds |= {("prefetch_factor", 2): 3.0, ("num_workers", 1): 0.9, ("num_workers", 0): 0.5}
    content = yaml.safe_load(config.read_text())
    content["data"]["num_workers"] = 8
    config.write_text(yaml.safe_dump(content))
    choose.main(str(config), str(tmp_path / "recommended.yaml"))
    data = yaml.safe_load((tmp_path / "recommended.yaml").read_text())["data"]
    assert data["num_workers"] == 2
    assert "cache_mb" not in capsys.readouterr().out


def test_model_that_never_waits_is_given_nothing(config, measured, tmp_path, capsys):
    speeds, asked = measured
    speeds[("num_workers", 0)] = 2.5
    choose.main(str(config), str(tmp_path / "recommended.yaml"))
    assert len(asked) == 3
    assert "nothing to gain: the model does not wait" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "recommended.yaml").read_text()) == yaml.safe_load(
        config.read_text()
    )


def test_interrupted_search_goes_on(config, measured, tmp_path, monkeypatch, capsys):
    """With the runs that it has; no file is there before it is done, and then it stays."""
    speeds, asked = measured
    speeds |= {("cache_mb", 64): 1.3, ("packed", True): 1.2}
    run_once, output = search.run_once, tmp_path / "recommended.yaml"

    def interrupted(configuration, timeout):
        if len(asked) == 7:
            raise KeyboardInterrupt
        return run_once(configuration, timeout)

    monkeypatch.setattr(search, "run_once", interrupted)
    with pytest.raises(KeyboardInterrupt):
        choose.main(str(config), str(output))
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "recommended.jsonl"}
    with (tmp_path / "recommended.jsonl").open("a") as log:
        log.write('{"half": ')
    monkeypatch.setattr(search, "run_once", run_once)
    choose.main(str(config), str(output))
    text, table = output.read_text(), capsys.readouterr().out
    again = [json.dumps(c, sort_keys=True) for c in asked]
    asked.clear()
    choose.main(str(config), str(tmp_path / "whole.yaml"))
    assert sorted(again) == sorted(json.dumps(c, sort_keys=True) for c in asked)
    assert capsys.readouterr().out.splitlines()[:-1] == table.splitlines()[:-1]
    with pytest.raises(UserError, match="is there; --overwrite true replaces it"):
        choose.main(str(config), str(output))
    assert output.read_text() == text
    choose.main(str(config), str(output), overwrite=True, fresh=True)


def test_nothing_is_half_written(tmp_path, monkeypatch):
    """Neither when the disk is full nor after Ctrl-C."""
    place = tmp_path / "recommended.yaml"
    place.write_text("old")
    for error in (OSError("disk full"), KeyboardInterrupt()):

        def fail(path, target, error=error):
            raise error

        with monkeypatch.context() as patch, contextlib.suppress(OSError, KeyboardInterrupt):
            patch.setattr(choose.Path, "replace", fail)
            choose.write(place, "new")
        assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    choose.write(place, "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config: .*No such file"),
        ("data: [1, {", "config: .*config.yaml: while parsing"),
        ("just text", "has no section data; allowed: such as config/config.yaml"),
        ("model: {depth: 2}", "has no section data"),
        ("data: {dataset: nowhere.Data}", "No module named 'nowhere'"),
        ("data: {batchsize: 3}", "does not accept option 'batchsize'; allowed: data.batch_size"),
        ("data: {batch_size: 0}", "data.batch_size: 0 is too small"),
    ],
)
def test_config_that_cannot_be_measured_is_one_line(tmp_path, content, message):
    place = tmp_path / "config.yaml"
    if content:
        place.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        choose.main(str(place), str(tmp_path / "recommended.yaml"))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_end_to_end(tmp_path):
    """The command, with real processes: samples in memory and a slow model, nothing to gain."""
    config = tmp_path / "config.yaml"
    config.write_text("data: {dataset: DummyDataset, batch_size: 4}")
    output = tmp_path / "recommended.yaml"
    command = [sys.executable, "choose_settings.py", f"--config={config}", f"--output={output}"]
    command += ["--train_step_time=0.2", "--batches=2", "--repeats=2"]
    done = subprocess.run(command, cwd=CHAPTER, capture_output=True, text=True, check=True)
    assert re.search(r"^as configured +\d", done.stdout, re.MULTILINE)
    assert "nothing to gain" in done.stdout
    assert len((tmp_path / "recommended.jsonl").read_text().splitlines()) >= 2
    assert parse_config("", ["--config", str(output)])[0].data.batch_size == 4
