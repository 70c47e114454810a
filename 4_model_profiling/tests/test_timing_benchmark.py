"""The instruments as commands: on a module that is not this project's, and on this chapter's."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timing_benchmark
import yaml
from src.config import CHAPTER
from src.errors import UserError
from step_timer import PARTS
from trace_summary import read_trace

OWN = ["--model-class=tests.own_training.Line", "--data-class=tests.own_training.Points"]
PICTURES = ("batch_time_breakdown.png", "total_batch_time.png", "time_distribution_pie.png")


@pytest.fixture
def config(tmp_path):
    place = tmp_path / "mine.yaml"
    place.write_text("model: {width: 4}\ndata: {number: 32}\ntrainer: {gradient_clip_val: 1.0}\n")
    return place


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=CHAPTER,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "timing_results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_timing_of_an_own_module(config, tmp_path, monkeypatch):
    folder = tmp_path / "results"
    command = [f"-c={config}", *OWN, f"--save-dir={folder}", "--warmup=2", "--data.batch_size=8"]
    printed = run("timing_benchmark.py", *command, "--device=cpu").stdout
    assert "largest: " in printed
    assert "\n6 batches after 2 of warm-up" in printed  # 2 epochs of 4 batches, less 2
    summary = yaml.safe_load((folder / "timing_summary.yaml").read_text())
    assert summary["model"] == "Line"
    assert list(summary["parts_ms"]) == list(PARTS)
    rows = rows_of(folder)
    assert [(row["epoch"], row["batch"]) for row in rows] == [
        (str(epoch), str(batch)) for epoch in range(2) for batch in range(4)
    ]
    assert all(float(row["forward_ms"]) > 0 < float(row["optimizer_ms"]) for row in rows)
    used = yaml.safe_load((folder / "benchmark_config.yaml").read_text())
    assert used["model"] == {"lr": 0.1, "width": 4}
    assert used["data"] == {"number": 32, "batch_size": 8}
    assert used["trainer"]["gradient_clip_val"] == 1.0
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in PICTURES)
    monkeypatch.setattr(sys, "argv", ["x", *command])
    with pytest.raises(UserError, match=f"--save-dir: {folder} is in use"):
        timing_benchmark.main()


@pytest.mark.slow
def test_timing_of_two_ranks(config, tmp_path):
    folder = tmp_path / "results"
    command = [f"-c={config}", *OWN, f"--save-dir={folder}", "--warmup=1", "--devices=2"]
    printed = run("timing_benchmark.py", *command, "--device=cpu", "--epochs=1").stdout
    assert printed.count("last to reach backward: rank") == 1
    assert {row["rank"] for row in rows_of(folder)} == {"0", "1"}
    assert len(rows_of(folder)) == 2 * 4  # the points are shared


@pytest.mark.slow
def test_profilers_of_an_own_module(config):
    logs = CHAPTER / "output" / "profiler" / "mine" / "profiler_logs"
    for _ in range(2):  # the second run replaces the reports of the first
        printed = run("profiler.py", f"-c={config}", *OWN, "--batches=3", "--device=cpu").stdout
        names = {path.name for path in logs.iterdir()}
        assert {"fit-simple_profiler_output.txt", "fit-advanced_profiler_output.txt"} <= names
        assert len([name for name in names if name.endswith(".pt.trace.json")]) == 1
    assert "operators: busy" in printed
    assert "https://ui.perfetto.dev" in printed
    assert "cumtime" in printed  # the advanced one's, and PyTorch's own table
    assert re.search(r"allocated +calls +name\n +[\d.]+ [KM]?B +\d+  aten::", printed)
    assert "run_training_epoch" in (logs / "fit-simple_profiler_output.txt").read_text()
    assert "own_training.py" in (logs / "fit-advanced_profiler_output.txt").read_text()
    (trace,) = logs.glob("*.pt.trace.json")
    assert "aten::" in run("trace_summary.py", str(trace)).stdout


@pytest.mark.slow
def test_profilers_of_two_ranks(tmp_path):
    """Each writes its own reports, and none is empty."""
    place = tmp_path / "ranks.yaml"
    place.write_text("data: {number: 64}\n")
    run("profiler.py", f"-c={place}", *OWN, "--batches=3", "--device=cpu", "--devices=2")
    logs = CHAPTER / "output" / "profiler" / "ranks" / "profiler_logs"
    for rank in range(2):
        simple = (logs / f"fit-simple_profiler_output-{rank}.txt").read_text()
        assert "DDPStrategy.training_step" in simple
        (trace,) = logs.glob(f"fit-pytorch_profiler_output-{rank}-*.pt.trace.json")
        assert {"aten::addmm"} <= {event.name for event in read_trace(trace)}


@pytest.mark.slow
def test_timing_of_this_chapter(tmp_path, monkeypatch):
    arguments = ["--data.dataset=DummyDataset", "--data.batch_size=4", "--batches=8", "--epochs=1"]
    folder = tmp_path / "results"
    command = ["x", *arguments, f"--save-dir={folder}", "--device=cpu"]
    monkeypatch.setattr(sys, "argv", command)
    assert timing_benchmark.main() == 0
    assert len(rows_of(folder)) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model-class=nowhere.Model"], "--model-class: cannot import nowhere.Model"),
        (["--model-class=tests.own_training.Nothing"], "--model-class: cannot import tests.own"),
        (["--model-class=tests.own_training.NoModule"], "NoModule is no LightningModule"),
        (["--data-class=tests.own_training.Line"], "Line is no LightningDataModule"),
        (["--precision=8"], "--precision: invalid choice: '8'"),
        (["--precision=16-mixed", "--device=cpu"], "16-mixed needs a GPU; allowed on the CPU: 32"),
        (["--device=tpu"], "there is no tpu device here"),
        (["--devices=0"], "--devices: 0 are not here"),
        (["--data.number=3"], "the training loader has no batch"),
        (["--model.depth=3"], "does not fit Line and Points: .*depth.*allowed: model.lr"),
        (["--config=absent.yaml"], "--config: there is no file absent.yaml"),
        (["--epochs=0"], "--epochs, --batches, --warmup: allowed"),
        (["--warmup=100"], "--warmup: 100 leaves none of 16 batches"),
        (["--epoch=3"], "--epoch is no option; allowed: "),
    ],
)
def test_bad_input_is_one_line(config, tmp_path, monkeypatch, arguments, message):
    """And the folder of the results is as free as before."""
    folder = tmp_path / "results"
    command = ["x", f"--config={config}", *OWN, f"--save-dir={folder}", *arguments]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(UserError, match=message) as caught:
        timing_benchmark.main()
    assert "\n" not in str(caught.value)
    assert not folder.exists()


def test_config_for_another_class_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", *OWN, f"--save-dir={tmp_path / 'x'}"])
    with pytest.raises(
        UserError, match=r"cli_config.yaml does not fit Line and Points: "
    ) as caught:
        timing_benchmark.main()
    assert "\n" not in str(caught.value)
