"""The benchmark, its pictures, the notebook and the ceiling."""

import json
import os
from unittest import mock

import benchmark_datapipeline_configurations as benchmark
import ceiling
import pytest
import yaml
from utils import read_configurations, read_log

from src.data.chunk_stream import ChunkStream
from src.data.fast_dataset import FastDataset
from src.run.config import CHAPTER
from src.run.errors import UserError
from tests.stores import SETTINGS, build_small

DEFAULTS = {
    "dataset": "dummydataset.SlowDataset",
    "dataset_args": {"load_time": 0.001},
    "batch_size": 4,
    "num_workers": 0,
    "prefetch_factor": 2,
    "train_step_time": 0.01,
    "delay": 0,
    "warmup": 1,
    "batches": 5,
}


def write(path, configurations: dict) -> str:
    content = {"defaults": DEFAULTS, "configurations": configurations}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


@pytest.mark.slow
def test_a_turn_has_a_process_of_its_own(monkeypatch, tmp_path):
    """Broken by: measure() in this process: `memory` would be of all turns before."""
    write(tmp_path / "a.yaml", {"slow": {"train_step_time": 0.1}})
    (settings,) = read_configurations(tmp_path / "a.yaml").values()
    monkeypatch.setattr(
        benchmark, "memory", lambda pid: 100.0 if pid != os.getpid() else 0
    )
    turn = benchmark.one_turn(settings)
    assert turn["memory"] == 100
    assert len(turn["steps"]) == 6


@pytest.mark.slow
def test_a_benchmark_goes_on_and_is_drawn(monkeypatch, tmp_path):
    """Broken by: `finished` without the turn's number.

    Or no look at unknown keys: a misspelt setting would be measured as the default. Or no look at
    settings in read_log.
    """
    nbclient = pytest.importorskip("nbclient", reason="uv sync --group notebook")
    nbformat = pytest.importorskip("nbformat", reason="uv sync --group notebook")
    monkeypatch.setattr(benchmark, "CHAPTER", tmp_path)
    monkeypatch.setattr(benchmark, "one_turn", measured_here)
    file = tmp_path / "benchmark_configs" / "ladder.yaml"
    file.parent.mkdir()
    good = {"slow": {}, "fast": {"dataset_args": {"load_time": 0}}}
    with pytest.raises(UserError, match=r"faster: unknown keys \['workers'\]"):
        benchmark.main(write(file, {"faster": {"workers": 2}}))
    benchmark.main(write(file, good), repeats=1)
    log = tmp_path / "benchmark_logs" / "ladder.jsonl"
    first, _ = log.read_text().splitlines()
    log.write_text(f"{first}\n")  # as if it had been stopped
    benchmark.main(write(file, good), repeats=2)
    turns = [json.loads(line) for line in log.read_text().splitlines()]
    assert turns[0] == json.loads(first)
    places = [(turn["name"], turn["turn"]) for turn in turns]
    assert places == [("slow", 0), ("fast", 0), ("slow", 1), ("fast", 1)]

    # `fast` is commented out for a while, and keeps its turns; `slow` has changed.
    changed = {"slow": {"batches": 6}}
    benchmark.main(write(file, changed), repeats=1)
    with monkeypatch.context() as patch:
        patch.setattr("platform.node", lambda: "another machine")
        benchmark.main(str(file), repeats=1)
    benchmark.main(write(file, good | changed), repeats=2)
    turns = read_log(log, read_configurations(file))
    places = [(turn["name"], turn["turn"]) for turn in turns]
    assert places == [("fast", 0), ("fast", 1), ("slow", 0), ("slow", 1)]

    notebook = nbformat.read(CHAPTER / "plot_benchmark_runs.ipynb", as_version=4)
    monkeypatch.setenv("PYTHONPATH", str(CHAPTER))
    nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2


def measured_here(settings: dict) -> dict:
    """A turn, without a new process."""
    return benchmark.measure(settings) | {"memory": 100}


def test_the_ceiling_names_a_bottleneck(tmp_path, capsys):
    """Broken by: objects that are not there (no modulo in object_names)."""
    build_small()
    file = tmp_path / "mine.yaml"
    defaults = {"dataset_args": SETTINGS, "batch_size": 4}
    file.write_text(json.dumps({"defaults": defaults}))  # JSON is YAML
    ceiling.main(str(file), delay=0.001, step_time=1e-6, num_batches=2)
    assert "bottleneck: model" not in capsys.readouterr().out
    ceiling.main(str(file), delay=0.001, stream=True, num_batches=2)
    assert "the loader reaches" in capsys.readouterr().out
    # The file may say `packed`, too: this store has no copy.
    url = SETTINGS["url"].replace("small", "bare")
    build_small(url, packed_months=None)
    defaults["dataset_args"] = SETTINGS | {"url": url, "packed": True}
    file.write_text(json.dumps({"defaults": defaults}))
    with pytest.raises(UserError, match="packed: there is no Zarr store"):
        ceiling.main(str(file))


def test_a_loader_that_uses_neither_store_nor_cores_is_the_bottleneck():
    """Broken by: max for min; share = 0; loader compared with the model alone."""
    speeds = {"store": 3000, "cores": 8500, "loader": 900}
    assert ceiling.bottleneck(speeds | {"model": 4000}) == "loader"
    assert ceiling.bottleneck(speeds | {"model": 1000}) == "loader"
    assert ceiling.bottleneck(speeds | {"model": 800}) == "model"
    assert ceiling.bottleneck(speeds | {"model": 4000, "loader": 2500}) == "store"


@pytest.mark.parametrize(("kind", "times"), [(FastDataset, 2), (ChunkStream, 1)])
def test_raw_requests_are_shared_as_in_the_loader(kind, times):
    """Also those that a stream has in its cache. Broken by: no done(), or no look at the kind."""
    build_small()
    dataset = kind("train", **SETTINGS, batches_ahead=0)
    store = mock.MagicMock()
    store.read.return_value.done.return_value = True
    store.read.return_value.result.return_value.state = "value"
    ceiling.RawRequests(dataset, store, [[0, 1], [0, 1]]).get_all()
    names = [call.args[0] for call in store.read.call_args_list]
    assert sorted(names) == sorted([*ceiling.object_names(dataset, [0, 1])] * times)
