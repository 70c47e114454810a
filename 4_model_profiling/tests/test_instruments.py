"""The instruments, on this chapter's training and on one that is not this project's."""

import count_step
import instruments
import lightning_train
import pandas as pd
import profiler
import pytest
import timing_benchmark
from slow_module import SlowModule

from src.run.config import CHAPTER
from src.run.errors import UserError
from tests.own_training import OwnData, OwnModule
from tests.runs import TINY, call


@pytest.fixture
def own(monkeypatch):
    """The two imports of lightning_train.py changed."""
    use(monkeypatch, OwnModule, OwnData)


def use(monkeypatch, module, data):
    classes = (module, data, lightning_train.LightningSettings)
    for script in (lightning_train, instruments, timing_benchmark):
        monkeypatch.setattr(script, "CLASSES", classes)


def test_the_benchmark_times_any_module(own, monkeypatch, tmp_path, capsys):
    """Broken by: no on_before_backward in StepTimer; a reference that is not the first row."""
    file = tmp_path / "rows.yaml"
    file.write_text("as it is: {}\nwider: {model: {width: 64}}")
    monkeypatch.setattr(timing_benchmark, "CHAPTER", tmp_path)
    options = [f"--rows={file}", f"--config={CHAPTER}/tests/own.yaml", "--steps=9"]
    call(monkeypatch, *options, script=timing_benchmark)
    (results,) = tmp_path.glob("results/benchmark/*/timing_results.csv")
    runs = pd.read_csv(results)
    assert list(runs["row"]) == ["as it is", "wider"] * 3
    parts = runs[list(instruments.PARTS)]
    assert (parts > 0).all().all()
    pd.testing.assert_series_equal(parts.sum(axis=1), runs["step"], check_names=False)
    assert len(list(results.parent.glob("*.png"))) == 1
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[2].split()[-1]) == 0 < float(lines[3].split()[-1])
    file.write_text("typo: {model: {breadth: 64}}")
    with pytest.raises(UserError, match="breadth"):
        call(monkeypatch, *options, script=timing_benchmark)
    timer = instruments.StepTimer()
    with pytest.raises(UserError, match="60 steps, and 70 are needed"):
        instruments.short_training(options[1:2], 70, [timer])
    assert len(timer.marks) == 1 + 60 * len(instruments.PARTS)


def test_operations_are_counted(monkeypatch):
    """Attention too. Broken by: no CPU_ATTENTION in count_step.

    A block of n tokens and width d has 72 n d^2 + 14 n^2 d in a step. Each of the four samples has
    two of 32 tokens, one of 128, and 10.2 million in embedding, projection and head.
    """
    words = [
        "--model.decoder_depth=1",
        "--data.batch_size=4",
        "--data.dataset=DummyDataset",
    ]
    operations, _ = count_step.count_step([*words, "--trainer.accelerator=cpu"])
    assert operations == pytest.approx(0.333e9, rel=2e-3)
    use(monkeypatch, OwnModule, OwnData)
    assert count_step.count_step([f"-c={CHAPTER}/tests/own.yaml"])[0] == 1408


def test_the_profiler_finds_the_slow_line(monkeypatch, tmp_path):
    """In the blog's files, also after a second run. Broken by: no unlink in profiler.main."""
    use(monkeypatch, SlowModule, lightning_train.CLASSES[1])
    monkeypatch.setattr(profiler, "CHAPTER", tmp_path)
    for _ in range(2):
        call(monkeypatch, TINY, "--steps=9", script=profiler)
    folder = tmp_path / "output" / "profiler" / "tiny" / "profiler_logs"
    simple, advanced, operators = (
        (folder / f"fit-{kind}_profiler_output.txt").read_text()
        for kind in ("simple", "advanced", "pytorch")
    )
    assert simple.count("FIT Profiler Report") == 1
    step = advanced.partition("SingleDeviceStrategy.training_step")[2]
    assert "share_of_land" in step.partition("Profile stats")[0]
    assert "Self CPU Mem" in operators
    assert len(list(folder.glob("*.pt.trace.json"))) == 1
