"""The instruments on trainings that are not this project's, and on ours; and what they refuse."""

import csv
import itertools
import re

import count_step
import pandas as pd
import profiler
import pytest
import timing_benchmark
import yaml

from src.run.config import CHAPTER
from src.run.errors import UserError
from src.run.step_timer import StepTimer
from tests.runs import call

OWN = [
    f"--config={CHAPTER}/tests/own.yaml",
    "--model-class=tests.own_training.OwnModule",
    "--data-class=tests.own_training.OwnData",
    "--trainer.accelerator=cpu",
]


def test_the_benchmark_times_any_module(monkeypatch, tmp_path):
    """Broken by: no "end" in StepTimer.stop, or a part that is counted twice."""
    folder = tmp_path / "results"
    call(monkeypatch, *OWN, f"--save-dir={folder}", script=timing_benchmark)
    with (folder / "timing_results.csv").open() as file:
        rows = [
            {key: float(value) for key, value in row.items()}
            for row in csv.DictReader(file)
        ]
    assert [row["epoch"] for row in rows] == [0] * 12 + [1] * 12
    for row in rows:
        assert sum(row[part] for part in timing_benchmark.COLORS) == pytest.approx(
            row["total"], abs=0.01
        )
        assert min(row.values()) >= 0
        assert min(row["forward"], row["backward"], row["data"]) > 0
    summary = yaml.safe_load((folder / "timing_summary.yaml").read_text())
    steps = 24 - timing_benchmark.WARMUP
    assert f"batch size unknown; {steps} steps" in summary["measured"]
    assert (
        yaml.safe_load((folder / "benchmark_config.yaml").read_text())["model"]["width"]
        == 16
    )
    assert len(list(folder.glob("*.png"))) == 1
    with pytest.raises(UserError, match="is in use"):
        call(monkeypatch, *OWN, f"--save-dir={folder}", script=timing_benchmark)


def test_three_profilers_watch_any_module(monkeypatch, tmp_path):
    """Twice, without appending. Broken by: no unlink of old reports, or no sort_by_key."""
    monkeypatch.setattr(profiler, "CHAPTER", tmp_path)
    for _ in range(2):
        call(monkeypatch, *OWN, "--steps=8", script=profiler)
    folder = tmp_path / "output" / "profiler" / "own" / "profiler_logs"
    report = (folder / "fit-simple_profiler_output.txt").read_text()
    assert report.count("Profiler Report") == 1
    assert "run_training_batch" in report
    assert (
        "own_training.py" in (folder / "fit-advanced_profiler_output.txt").read_text()
    )
    operators = (folder / "fit-pytorch_profiler_output.txt").read_text()
    assert "aten::" in operators
    # The first percentage of a row is its own time.
    shares = list(map(float, re.findall(r"(?m)^[^%\n]*?(-?[\d.]+)%", operators)))
    assert shares == sorted(shares, reverse=True)
    assert len(list(folder.glob("*.pt.trace.json"))) == 1


def test_the_operations_of_a_step_are_counted(monkeypatch, capsys):
    """And nothing is drawn. Broken by: no self.counter in on_train_batch_start; pictures.

    A block of n tokens and width d has 72 n d^2 + 14 n^2 d in a step. Each of the four samples has
    two of 32 tokens, one of 128, and 10.2 million in embedding, projection and head: 83.4 million.
    """
    monkeypatch.setattr("src.callbacks.report_callback.draw", None)
    speeds = 1e11, 1e10  # measuring them takes seconds
    monkeypatch.setattr(count_step, "machine_speed", lambda *_: speeds)
    words = ["--model.decoder_depth=1", "--model.num_heads=2", "--data.batch_size=4"]
    words += ["--data.dataset=DummyDataset", "--data.dataset.num_samples=24"]
    words += ["--trainer.accelerator=cpu", "--steps=6"]
    call(monkeypatch, *words, script=count_step)
    assert "counted     0.333 GFLOP\n" in capsys.readouterr().out
    call(monkeypatch, *OWN, "--steps=6", script=count_step)
    assert capsys.readouterr().out.count("at best") == 1
    with pytest.raises(UserError, match="compiled"):
        call(monkeypatch, *words, "--model.compile=true", script=count_step)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.num_samples=16"], "too few"),
        (["--data.workers=3"], "--data.workers"),
        (["--steps=4"], "4 batches are too few"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        call(
            monkeypatch,
            *OWN,
            *options,
            f"--save-dir={tmp_path}/new",
            script=timing_benchmark,
        )
    assert not (tmp_path / "new").exists()


def advice(steps, device, precision="32-true") -> str:
    table = timing_benchmark.summarise(steps)
    return timing_benchmark.advice(table, device, precision)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_advice_fits_the_figures_and_the_device(device):
    """Broken by: bf16 on a processor, which may emulate it; a look at p90 of the total."""
    times = {"data": 2, "transfer": 0, "forward": 3, "backward": 4}
    times |= {"clipping": 0, "optimizer": 1, "other": 0}
    steps = pd.DataFrame([times] * 20)
    steps["total"] = steps.sum(axis=1)
    text = advice(steps, device)
    assert text.startswith("begin with backward, 40% of the time")
    assert ("bf16" in text) == (device == "cuda")
    assert "bf16" not in advice(steps, device, "bf16-mixed")

    steps.loc[::5, "data"] += 30  # one step in five waits for its data
    steps.loc[::5, "total"] += 30
    assert advice(steps, device).startswith("begin with data")

    steps.iloc[::5] *= 3
    warning, text = advice(steps, device).splitlines()
    assert "is something else running here" in warning
    assert text.startswith("begin with data")


def test_marks_divide_a_step_into_its_parts(monkeypatch):
    """One part inside of another, validation left out. Broken by: no `running.pop()`."""
    timer = StepTimer("cpu")
    clock = itertools.count()
    monkeypatch.setattr(timer, "now", lambda: next(clock))  # each mark is a second
    timer.start("run_training_epoch")
    for number in range(3):
        with timer.profile("[Loop].train_dataloader_next"):
            pass
        with timer.profile("[LightningModule]Own.optimizer_step"):
            with timer.profile("[Strategy]S.training_step"), timer.profile("backward"):
                pass  # of a micro-batch
            with timer.profile("[Strategy]S.backward"):
                pass
            with timer.profile("[LightningModule]Own.configure_gradient_clipping"):
                pass
        with timer.profile("[LightningModule]Own.on_train_batch_end"):
            pass
        if number == 1:
            with timer.profile("[Strategy]S.batch_to_device"):
                pass  # of a validation
            timer.start("run_training_epoch")
    rows = timer.seconds()
    parts = {"data": 1, "transfer": 0, "forward": 2, "backward": 2}
    parts |= {"clipping": 1, "optimizer": 4}
    assert rows[0] == {"epoch": 0, "total": 13, "other": 3} | parts
    # The last step of an epoch ends in front of the validation.
    assert rows[1] == {"epoch": 0, "total": 12, "other": 2} | parts
    assert rows[2] == {"epoch": 1, "total": 12, "other": 2} | parts
