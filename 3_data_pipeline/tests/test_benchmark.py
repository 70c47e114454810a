"""The benchmark and the ceiling: what they measure, and what they do when something breaks."""

import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys

import benchmark_datapipeline_configurations as benchmark
import ceiling
import psutil
import pytest
import torch
import yaml
from benchmark_one import Model, Order, measure
from src.config import CHAPTER
from src.data.fast_dataset import FastDataset
from src.data.pack import pack
from src.errors import UserError

from tests.cloud_stores import SMALL, small_store

BASE = {
    "dataset": "dummydataset.DummySlowDataset",
    "dataset_args": {"num_samples": 64, "load_time": 0.01, "sample_shape": [1, 1, 4, 4]},
    "model": {},
    "batch_size": 4,
    "train_step_time": 0.02,
    "warmup": 1,
    "batches": 3,
}


def test_waiting_and_working_are_told_apart():
    """A batch of four takes 40 ms to load, the model 20 ms."""
    found = measure(BASE)
    assert len(found["waits"]) == len(found["steps"]) == 3
    assert all(wait >= 0.04 for wait in found["waits"])
    assert all(step >= 0.02 for step in found["steps"])
    total = sum(found["waits"] + found["steps"])
    assert found["busy"] == pytest.approx(sum(found["steps"]) / total, abs=1e-3)
    assert 0 < found["samples_per_second"] < 4 / 0.06
    assert found["seconds_to_first_batch"] >= 0.04
    fast = measure(BASE | {"dataset_args": BASE["dataset_args"] | {"load_time": 0.0}})
    assert fast["busy"] > found["busy"]


def test_order_is_that_of_the_training():
    """Epoch after epoch, and never more than asked for."""
    batches = list(Order(10, 4, 6))
    assert [len(batch) for batch in batches] == [4] * 6
    flat = list(itertools.chain(*batches))
    assert sorted(flat[:10]) == sorted(flat[10:20]) == list(range(10))


def test_real_model_takes_a_step(monkeypatch):
    model = Model("real", (1, 3, 8, 8), {"embed_dim": 16, "decoder_embed_dim": 16})
    before = [p.detach().clone() for p in model.model.parameters()]
    model.step((torch.randn(2, 1, 3, 8, 8), torch.tensor([0, 1])))
    assert any(not p.equal(q) for p, q in zip(model.model.parameters(), before, strict=True))


@pytest.fixture
def file(tmp_path):
    """Two configurations, one of which is broken."""
    content = {
        "defaults": BASE,
        "configurations": {
            "good": None,
            "broken": {"dataset": "dummydataset.NoSuchDataset"},
        },
        "grid": {"batch_size": [2, 3]},
    }
    place = tmp_path / "few.yaml"
    place.write_text(yaml.safe_dump(content, sort_keys=False))
    return place


def test_configurations_of_a_file(file):
    found = benchmark.read_configurations(file, {"batches": 5})
    assert list(found) == ["good", "broken", "batch_size 2", "batch_size 3"]
    assert found["good"]["batches"] == 5
    assert found["batch_size 2"]["batch_size"] == 2
    assert found["good"]["dataset_args"]["load_time"] == 0.01
    slower = benchmark.read_configurations(file, {"dataset_args": {"load_time": 1.0}})
    assert slower["good"]["dataset_args"] == BASE["dataset_args"] | {"load_time": 1.0}
    other = benchmark.read_configurations(file, {"dataset": "x.Y", "dataset_args": {"a": 1}})
    assert other["good"]["dataset_args"] == {"a": 1}
    assert found["batch_size 2"]["dataset_args"] == BASE["dataset_args"]
    grid = {"num_workers": [0, 1], "dataset_args.load_time": [0.1]}
    file.write_text(yaml.safe_dump({"defaults": BASE, "grid": grid}, sort_keys=False))
    found = benchmark.read_configurations(file, {})
    assert list(found) == ["num_workers 0, load_time 0.1", "num_workers 1, load_time 0.1"]
    changed = BASE["dataset_args"] | {"load_time": 0.1}
    assert found["num_workers 1, load_time 0.1"]["dataset_args"] == changed
    file.write_text("defaults: {speed: 1}\nconfigurations: {one: null}")
    with pytest.raises(UserError, match="one has speed; allowed: batch_size, "):
        benchmark.read_configurations(file, {})
    file.write_text("nothing")
    with pytest.raises(UserError, match="is no list of configurations"):
        benchmark.read_configurations(file, {})


@pytest.mark.slow
def test_log_is_continued_and_a_broken_one_reported(file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "connect", lambda: None)
    log = tmp_path / "log.jsonl"
    settings = {"file": str(file), "log": str(log), "batches": 2}
    assert benchmark.main(**settings, repeats=1) == 1
    rows = capsys.readouterr().out.splitlines()
    assert re.search(r"^broken +failed: .*NoSuchDataset", "\n".join(rows), re.MULTILINE)
    assert len([row for row in rows if re.match(r"(good|batch_size \d) +\d", row)]) == 3
    runs = benchmark.read_log(log)
    assert [run["name"] for run in runs] == ["good", "broken", "batch_size 2", "batch_size 3"]
    assert {"processor", "cores", "torch", "tensorstore", "date"} <= set(runs[0]["machine"])
    assert runs[0]["peak_memory_mb"] > 100
    assert runs[0]["cpu_seconds"] >= 0
    # A kill may leave half a line; the next start measures what is missing, and no more.
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:3], lines[3][:50]]) + "\n")
    ran = []
    monkeypatch.setattr(
        benchmark, "run_once", lambda c, t: ran.append(c["batch_size"]) or {"error": "x"}
    )
    benchmark.main(**settings, repeats=1)
    assert ran == [4, 3]  # the broken one again, and the lost one


def measuring(process: subprocess.Popen) -> list[psutil.Process]:
    """The children of a benchmark, once one of them measures."""
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
        if any("benchmark_one.py" in child.cmdline() for child in family):
            return family
    return []


@pytest.mark.slow
def test_interrupt_leaves_no_process(file, tmp_path):
    """Ctrl-C while a configuration is measured."""
    long = f"--dataset_args={json.dumps({'load_time': 5.0})}"
    command = [sys.executable, "-c", "import benchmark_datapipeline_configurations as b\n"
               "import sys; b.connect = lambda: None\n"
               "with b.one_line_errors(): b.auto_cli(b.main)"]  # fmt: skip
    arguments = [f"--file={file}", f"--log={tmp_path / 'log'}", long]
    arguments += ["--dataset=dummydataset.DummySlowDataset"]
    process = subprocess.Popen([*command, *arguments], cwd=CHAPTER)
    while not (children := measuring(process)):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT
    _, left = psutil.wait_procs(children, timeout=30)
    assert not left


def test_timeout_is_an_error(monkeypatch):
    slow = BASE | {"dataset_args": {"load_time": 60.0}, "delay": "0ms"}
    assert benchmark.run_once(slow, 0.5) == {"error": "not done in 0.5 s"}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    place = str(tmp_path_factory.mktemp("store") / "small.zarr")
    small_store(place, chunk=(5, 4, 7))
    pack(place, (5, 4, 7))
    return place


@pytest.mark.parametrize("packed", [False, True])
def test_raw_requests_are_those_of_the_reader(small, packed):
    """The ceiling fetches the objects that the reader fetches, and decodes the same samples."""
    dataset = FastDataset("train", url=small, packed=packed, batches_ahead=0, **SMALL)
    dataset[0]
    batch = list(range(0, 40, 3))
    before = int(dataset.counts[0, 0])
    dataset.__getitems__(batch)
    assert len(ceiling.chunks_of_batch(dataset, batch)) == int(dataset.counts[0, 0]) - before
    speed, megabytes = ceiling.raw_gets(dataset, [batch], 4, 0.05)
    assert min(speed, megabytes) > 0
    assert min(ceiling.decoding(dataset, batch, 0.05)) > 0
    assert min(ceiling.copying(dataset, 4, 0.05)) > 0


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ({"model": 100, "store": 500, "decode": 900, "copy": 9e5, "loader": 450}, "model"),
        ({"model": 900, "store": 500, "decode": 950, "copy": 9e5, "loader": 450}, "store"),
        ({"model": 900, "store": 800, "decode": 300, "copy": 9e5, "loader": 290}, "decode"),
        ({"model": 900, "store": 800, "decode": 990, "copy": 9e5, "loader": 90}, "loader"),
    ],
)
def test_verdict(capsys, speeds, verdict):
    ceiling.report([(part, "", speed, 1.0) for part, speed in speeds.items()], 1000)
    assert f"bottleneck: {verdict}; " in capsys.readouterr().out
