"""The benchmark, its pictures, the notebook and the ceiling."""

import json
import os
from unittest.mock import Mock

import benchmark_datapipeline_configurations as benchmark
import ceiling
import psutil
import pytest
import yaml
from utils import memory

from src.config import CHAPTER
from src.errors import UserError
from tests.stores import SETTINGS, build_small

DEFAULTS = {"dataset": "dummydataset.SlowDataset", "dataset_args": {"load_time": 0.001}}
DEFAULTS |= {
    "batch_size": 4,
    "num_workers": 0,
    "prefetch_factor": 2,
    "persistent_workers": True,
}
DEFAULTS |= {
    "pin_memory": False,
    "train_step_time": 0.01,
    "delay": 0,
    "warmup": 1,
    "batches": 5,
}


def write(path, configurations: dict) -> str:
    path.write_text(
        yaml.safe_dump(
            {"defaults": DEFAULTS, "configurations": configurations}, sort_keys=False
        )
    )
    return str(path)


@pytest.mark.slow
def test_a_benchmark_goes_on_and_is_drawn(monkeypatch, tmp_path, capsys):
    """Broken by: no `except` around one_turn(), or `finished` without the turn's number."""
    nbclient = pytest.importorskip("nbclient", reason="uv sync --group notebook")
    nbformat = pytest.importorskip("nbformat", reason="uv sync --group notebook")
    monkeypatch.setattr(benchmark, "CHAPTER", tmp_path)
    file, good = (
        tmp_path / "ladder.yaml",
        {"slow": {}, "fast": {"dataset_args": {"load_time": 0}}},
    )
    write(file, {"broken": {"dataset": "no_module.Dataset"}} | good)
    benchmark.main(str(file), repeats=1)
    log = tmp_path / "benchmark_logs" / "ladder.jsonl"
    first = log.read_text()
    turns = [json.loads(line) for line in first.splitlines()]
    assert [turn["name"] for turn in turns] == ["slow", "fast"]
    for turn in turns:
        assert len(turn["steps"]) == 6
        for begun, ended, asked, got, done in turn["steps"]:
            assert begun < ended <= got < done
            assert asked < got
        assert turn["busy"] > 0
        assert turn["memory"] > 100
    output = capsys.readouterr()
    assert "broken: ModuleNotFoundError: No module named 'no_module'" in output.err
    assert "first s" in output.out

    write(file, good)
    log.write_text(first.splitlines(keepends=True)[0])  # as if it had been stopped
    benchmark.main(str(file), repeats=1)
    whole = log.read_text()
    assert whole.startswith(first.splitlines()[0])
    assert len(whole.splitlines()) == 2

    write(file, {"fast": good["fast"]})  # the other one is commented out
    benchmark.main(str(file), repeats=1)
    assert log.read_text() == whole

    notebook = nbformat.read(CHAPTER / "plot_benchmark_runs.ipynb", as_version=4)
    monkeypatch.setenv("PYTHONPATH", str(CHAPTER))
    nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [
        kind
        for cell in notebook.cells
        for o in cell.get("outputs", [])
        for kind in o.get("data", {})
    ]
    assert outputs.count("image/png") == 2


@pytest.mark.slow
def test_files_that_cannot_be_measured(tmp_path):
    """Broken by: no look at unknown keys: a misspelt setting would be measured as the default."""
    with pytest.raises(UserError, match=r"faster: unknown keys \['workers'\]"):
        benchmark.main(write(tmp_path / "a.yaml", {"faster": {"workers": 2}}))
    with pytest.raises(UserError, match="none of its configurations could be measured"):
        benchmark.main(
            write(tmp_path / "b.yaml", {"broken": {"dataset": "nothing"}}), repeats=1
        )


def test_the_memory_of_a_process_that_hides_it(monkeypatch):
    """As macOS does. Broken by: no AccessDenied in memory(): 0 MB."""
    refuse = Mock(side_effect=psutil.AccessDenied)
    monkeypatch.setattr(psutil.Process, "memory_full_info", refuse)
    assert memory(os.getpid()) > 10


def test_the_ceiling_names_a_bottleneck(monkeypatch, capsys):
    """Broken by: requests of objects that are not there (no modulo in keys); no look at model."""
    build_small()
    defaults = {"dataset_args": SETTINGS, "batch_size": 4}
    monkeypatch.setattr(ceiling, "read_defaults", lambda file: defaults)
    ceiling.main(delay=0.001, step_time=1e-6, num_batches=2)
    output = capsys.readouterr().out
    assert "bottleneck: " in output
    speeds = {"model": 100.0, "training": 60.0, "loader": 70.0}
    speeds |= {"store": 80.0, "decoding": 90.0}
    assert ceiling.bottleneck(speeds) == "store"
    assert ceiling.bottleneck(speeds | {"training": 97.0}) == "model"
    assert ceiling.bottleneck(speeds | {"loader": 30.0}).startswith("loader")
    # Each stage by itself would suffice.
    enough = {"store": 200.0, "decoding": 150.0, "loader": 110.0}
    assert ceiling.bottleneck(speeds | enough).startswith("the stages wait")
    defaults["batch_size"] = 10**6
    with pytest.raises(UserError, match="fewer windows than a batch"):
        ceiling.main()
