"""Stopped Lightning runs go on to the same bits."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from src.lightning_logger import RunLogger

from tests.lightning_runs import (
    SCRIPT,
    assert_same_lightning_run,
    call_cli,
    call_lightning,
    run_cli,
    shared_reference,
    step_of,
    train_lightning,
)
from tests.runs import rows


@pytest.fixture
def reference(tmp_path_factory):
    return shared_reference(tmp_path_factory.getbasetemp())


NO_LIMIT = "--trainer.max_steps=-1"


def scores(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


WORKERS = [pytest.param(stop, 2, marks=pytest.mark.slow) for stop in (4, 6)]


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize(("stop", "num_workers"), [(1, 0), (4, 0), (6, 0), (11, 0), *WORKERS])
def test_resumed_run_is_identical(monkeypatch, tmp_path, reference, stop, num_workers):
    """Stopped at the first step, between epochs, inside one and before the end."""
    workers = f"--data.num_workers={num_workers}"
    assert train_lightning(monkeypatch, tmp_path, f"--trainer.max_steps={stop}", workers) == 0
    folder = tmp_path / "run_1"
    assert step_of(folder) == stop
    assert call_lightning(monkeypatch, f"--resume={folder}", NO_LIMIT) == 0
    assert_same_lightning_run(reference, folder)
    assert scores(folder) == scores(reference)
    assert step_of(folder, "best") == step_of(reference, "best")
    assert [path.name for path in tmp_path.iterdir()] == ["run_1"]


def test_resumed_over_and_over(monkeypatch, tmp_path, reference):
    """Also twice in the first epoch, which has no best checkpoint yet."""
    folder = tmp_path / "run_1"
    assert train_lightning(monkeypatch, tmp_path, "--trainer.max_steps=2") == 0
    for stop in (3, 7, -1):
        assert call_lightning(monkeypatch, f"--resume={folder}", f"--trainer.max_steps={stop}") == 0
    assert_same_lightning_run(reference, folder)


@pytest.mark.slow(copies=True)
def test_from_the_best_checkpoint(monkeypatch, tmp_path, reference):
    """Rows after it are dropped, half a row of a killed process too, and computed again."""
    folder = tmp_path / "run_1"
    assert train_lightning(monkeypatch, tmp_path, "--trainer.max_steps=6") == 0
    assert (step_of(folder, "best"), step_of(folder)) == (4, 6)
    with (folder / "metrics.csv").open("a") as file:
        file.write("7,1,0.1")
    best = folder / "checkpoints" / "best.ckpt"
    assert call_lightning(monkeypatch, f"--resume={best}", NO_LIMIT) == 0
    assert_same_lightning_run(reference, folder)


def test_from_a_checkpoint_inside_an_epoch(monkeypatch, tmp_path, reference):
    """checkpoint_every_n_steps, and then nothing saved until the process was killed."""
    folder, every = tmp_path / "run_1", "--trainer.checkpoint_every_n_steps=3"
    last, step = folder / "checkpoints" / "last.ckpt", torch.optim.AdamW.step

    def dying_step(*arguments, **settings):
        if last.exists() and step_of(folder) == 6:
            raise KeyboardInterrupt
        return step(*arguments, **settings)

    monkeypatch.setattr(torch.optim.AdamW, "step", dying_step)
    with pytest.raises(SystemExit):
        train_lightning(monkeypatch, tmp_path, every)
    monkeypatch.undo()
    assert step_of(folder) == 6
    assert call_lightning(monkeypatch, f"--resume={folder}") == 0
    assert_same_lightning_run(reference, folder)


@pytest.mark.slow(copies=True)
def test_killed_between_a_checkpoint_and_its_row(monkeypatch, tmp_path, reference):
    """Lightning writes the row of a step after its checkpoint."""
    folder, every = tmp_path / "run_1", "--trainer.checkpoint_every_n_steps=3"
    log = RunLogger.log_metrics

    def dying_log(self, metrics, step=None):
        if step == 5:  # counted from 0
            raise KeyboardInterrupt
        log(self, metrics, step)

    monkeypatch.setattr(RunLogger, "log_metrics", dying_log)
    with pytest.raises(SystemExit):
        train_lightning(monkeypatch, tmp_path, every)
    monkeypatch.undo()
    assert (step_of(folder), rows(folder)[-1]["step"]) == (6, "5")
    assert call_lightning(monkeypatch, f"--resume={folder}") == 0
    assert_same_lightning_run(reference, folder)


def test_a_finished_run_reports_again(monkeypatch, tmp_path, reference, capsys):
    shutil.copytree(reference, tmp_path / "run_1")
    assert call_lightning(monkeypatch, f"--resume={tmp_path / 'run_1'}") == 0
    assert_same_lightning_run(reference, tmp_path / "run_1")
    assert "validation RMSE of noise_1 (1)" in capsys.readouterr().out


def test_printed_command_continues(monkeypatch, tmp_path, reference, capsys):
    """What a stopped run prints can be pasted; it goes past the step that it was stopped at."""
    assert train_lightning(monkeypatch, tmp_path, "--trainer.max_steps=6") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2] == "stopped after step 6; continue with:"
    command = printed[-1].split()
    assert command[:3] == ["uv", "run", "python"]
    assert Path(command[3]).samefile(SCRIPT)
    assert call_lightning(monkeypatch, *command[4:]) == 0
    assert_same_lightning_run(reference, tmp_path / "run_1")


@pytest.mark.slow(copies=True)
def test_command_line_goes_on_in_the_runs_own_folder(monkeypatch, tmp_path, reference, capsys):
    """``fit --ckpt_path`` as it is printed, from the chapter's folder."""
    assert run_cli(monkeypatch, "fit", tmp_path, "--trainer.max_steps=6") == 0
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert command[:6] == ["uv", "run", "python", "-m", "lightning_trainer", "fit"]
    assert call_cli(monkeypatch, "fit", *command[6:]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run_1"]
    assert_same_lightning_run(reference, tmp_path / "run_1")
