"""The benchmark: what it measures, and what it does when something breaks."""

import contextlib
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
from benchmark_file import read_configurations
from benchmark_one import Model, Order, measure
from src.config import CHAPTER
from src.data.sampler import epoch_order
from src.errors import UserError
from utils import run_command

from tests.cloud_stores import SMALL
from tests.fast_stores import url as url  # a fixture

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
    assert all(there - asked >= 0.04 for asked, there in found["loads"])  # one after the other
    assert found["loads"][0][1] < found["loads"][1][0]
    fast = measure(BASE | {"dataset_args": BASE["dataset_args"] | {"load_time": 0.0}})
    assert fast["busy"] > found["busy"]


def test_order_is_that_of_the_training():
    """Epoch after epoch, without the samples that fill no batch; the dataset may decide."""
    batches = list(Order(range(10), 4, 6))
    first, second = (epoch_order(10, 0, epoch) for epoch in (0, 1))
    assert batches[:4] == [first[:4], first[4:8], second[:4], second[4:8]]
    assert len(batches) == 6
    with pytest.raises(UserError, match="batch_size: 11 does not fit the 10 samples"):
        Order(range(10), 11, 1)


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
    found = read_configurations(file, {"batches": 5})
    assert list(found) == ["good", "broken", "batch_size 2", "batch_size 3"]
    assert found["good"]["batches"] == 5
    assert found["batch_size 2"]["batch_size"] == 2
    assert found["good"]["dataset_args"]["load_time"] == 0.01
    slower = read_configurations(file, {"dataset_args": {"load_time": 1.0}})
    assert slower["good"]["dataset_args"] == BASE["dataset_args"] | {"load_time": 1.0}
    other = read_configurations(file, {"dataset": "x.Y", "dataset_args": {"a": 1}})
    assert other["good"]["dataset_args"] == {"a": 1}
    assert found["batch_size 2"]["dataset_args"] == BASE["dataset_args"]
    grid = {"num_workers": [0, 1], "dataset_args.load_time": [0.1]}
    file.write_text(yaml.safe_dump({"defaults": BASE, "grid": grid}, sort_keys=False))
    found = read_configurations(file, {})
    assert list(found) == ["num_workers 0, load_time 0.1", "num_workers 1, load_time 0.1"]
    changed = BASE["dataset_args"] | {"load_time": 0.1}
    assert found["num_workers 1, load_time 0.1"]["dataset_args"] == changed
    file.write_text("defaults: {speed: 1}\nconfigurations: {one: null}")
    with pytest.raises(UserError, match="one has speed; allowed: batch_size, "):
        read_configurations(file, {})
    file.write_text("nothing")
    with pytest.raises(UserError, match="is no list of configurations"):
        read_configurations(file, {})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"delay": "30"}, "delay: '30' is not a number with a unit; allowed: such as 30ms, 1s"),
        ({"delay": "fast"}, "delay: 'fast' is not"),
        ({"train_step_time": "foo"}, "train_step_time: 'foo'; allowed: real, or seconds from 0"),
        ({"train_step_time": -1}, "train_step_time: -1; allowed"),
    ],
)
def test_values_that_no_run_could_use(file, setting, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read_configurations(file, setting)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "x"], "\"seconds\": Expected a <class 'float'>. Got value: x"),
        (
            ["--second", "1"],
            "unrecognized arguments: --second 1; allowed: file, delay, step_time, ",
        ),
        (["--seconds", "0"], "seconds: 0.0; allowed: above 0"),
    ],
)
def test_wrong_arguments_are_one_line(monkeypatch, arguments, message):
    monkeypatch.setattr(sys, "argv", ["ceiling.py", *arguments])
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        run_command(ceiling.main, ceiling.__doc__)
    assert "\n" not in str(caught.value)


def test_arguments_may_have_any_name(monkeypatch):
    """Also one of those that jsonargparse's Namespace has methods of."""
    monkeypatch.setattr(sys, "argv", ["command.py", "--keys=3"])

    def command(keys: int = 1) -> int:
        return keys

    assert run_command(command, None) == 3


def test_a_run_of_another_machine_is_no_result(file, tmp_path, monkeypatch, capsys):
    """It is measured again here; nor is what failed once tried again and again."""
    monkeypatch.setattr(benchmark, "connect", lambda: None)
    here, log, ran = benchmark.machine(), tmp_path / "log.jsonl", []
    result = {key: 1.0 for _, key, _, _ in benchmark.COLUMNS} | {"waits": [0.1], "steps": [0.1]}

    def run_once(configuration, timeout):
        ran.append(configuration["batch_size"])
        return {"error": "no such thing"} if configuration["batch_size"] == 2 else result

    monkeypatch.setattr(benchmark, "run_once", run_once)
    settings = {"file": str(file), "log": str(log), "repeats": 2}
    benchmark.main(**settings)
    assert ran == [4, 4, 2, 3, 4, 4, 3]
    ran.clear()
    benchmark.main(**settings)
    assert ran == [2]
    monkeypatch.setattr(benchmark, "machine", lambda: here | {"date": "later"})
    benchmark.main(**settings)
    assert ran == [2, 2]
    monkeypatch.setattr(benchmark, "machine", lambda: here | {"processor": "another"})
    ran.clear()
    benchmark.main(**settings)
    assert ran == [4, 4, 2, 3, 4, 4, 3]
    capsys.readouterr()


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
               "with b.one_line_errors(): b.run_command(b.main, None)"]  # fmt: skip
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


def test_batches_ahead_are_loaded_side_by_side(url):
    """And each batch is the one that was asked for so early."""
    arguments = {"url": url, "batches_ahead": 2} | SMALL
    found = measure(
        BASE
        | {"dataset": "src.data.fast_dataset.FastDataset", "dataset_args": arguments}
        | {"train_step_time": 0.05, "batches": 6, "warmup": 3}
    )
    starts, ends = zip(*found["loads"], strict=True)
    assert list(starts) == sorted(starts)
    assert all(starts[number + 2] < ends[number] + 0.05 for number in range(4))
    assert ends[0] - starts[0] > 0.09  # it was asked for two steps before
