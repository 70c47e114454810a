"""Stopped, interrupted and killed runs go on to the same bits."""

import json
import os
import shutil
import signal

import pytest
import torch
from src.checkpoint import TrainingState
from src.interrupt import GracefulInterrupt

from tests.runs import (
    LONG,
    assert_same_run,
    call,
    reference_run,
    start,
    train,
    wait_for_step,
    wait_until_gone,
)


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize(("stop", "num_workers"), [(1, 0), (4, 0), (6, 0), (6, 2), (11, 0)])
def test_resumed_run_is_identical(monkeypatch, tmp_path, stop, num_workers):
    """Stopped at the first step, between epochs, inside one and before the end."""
    reference = reference_run(monkeypatch, tmp_path)
    workers = f"--data.num_workers={num_workers}"
    assert train(monkeypatch, tmp_path, f"--trainer.max_steps={stop}", workers) == 0
    folder = tmp_path / "run_1"
    assert torch.load(folder / "checkpoints/last.pt", weights_only=True)["global_step"] == stop
    assert call(monkeypatch, f"--resume={folder}", "--trainer.max_steps=-1") == 0
    assert_same_run(reference, folder)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(
        (reference / "summary.json").read_text()
    )


@pytest.mark.slow(copies=True)
def test_resume_from_a_named_checkpoint(monkeypatch, tmp_path):
    """Rows after the checkpoint are dropped, and computed again to the same values."""
    reference = reference_run(monkeypatch, tmp_path)
    folder = tmp_path / "run_1"
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=6") == 0
    kept = folder / "checkpoints" / "kept.pt"
    shutil.copy(folder / "checkpoints" / "last.pt", kept)
    assert call(monkeypatch, f"--resume={folder}", "--trainer.max_steps=9") == 0
    with (folder / "metrics.csv").open("a") as file:
        file.write("10,2,0.1")  # half a row, as a killed process leaves it
    assert call(monkeypatch, f"--resume={kept}", "--trainer.max_steps=-1") == 0
    assert_same_run(reference, folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_and_ends(tmp_path, number):
    """Ctrl-C goes to every process of the terminal, workers included; nothing is left behind."""
    process = start(tmp_path, *LONG, "--data.num_workers=2", start_new_session=True)
    folder = tmp_path / "run_1"
    wait_for_step(process, folder, 20)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    assert "pytorch_train.py --resume" in output
    saved = torch.load(folder / "checkpoints/last.pt", weights_only=True)["global_step"]
    assert 20 <= saved < 1000
    assert f"stopped after step {saved}" in output
    wait_until_gone(process.pid)


@pytest.fixture
def ctrl_c():
    """Python's own answer to Ctrl-C; a shell switches it off in what runs in the background."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def test_repeated_signals(ctrl_c):
    """Two SIGTERMs are as one, because several programs may pass it on; a second Ctrl-C is not."""
    with GracefulInterrupt() as interrupt:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert interrupt.signal_number == signal.SIGTERM
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_bits(monkeypatch, tmp_path):
    """SIGKILL in the middle of an epoch: nothing can be saved then, the last checkpoint counts."""
    shorter = ["--data.dataset.num_samples=400", "--trainer.checkpoint_every_n_steps=7"]
    assert train(monkeypatch, tmp_path / "straight", *shorter) == 0
    folder = tmp_path / "killed" / "run_1"
    process = start(tmp_path / "killed", *shorter)
    wait_for_step(process, folder, 60)
    process.kill()
    process.communicate()
    assert call(monkeypatch, f"--resume={folder}") == 0
    assert_same_run(tmp_path / "straight" / "run_1", folder)


def test_crash_between_two_checkpoints_loses_no_best(monkeypatch, tmp_path):
    """The run dies after best.pt and before last.pt: resumed, it writes the same best.pt again."""
    reference = reference_run(monkeypatch, tmp_path)
    save, saved = TrainingState.save, []

    def dying_save(state, path):
        saved.append(path.name)
        if saved == ["best.pt", "last.pt", "best.pt", "last.pt"][: len(saved)] and len(saved) == 4:
            raise KeyboardInterrupt
        save(state, path)

    monkeypatch.setattr(TrainingState, "save", dying_save)
    with pytest.raises(KeyboardInterrupt):
        train(monkeypatch, tmp_path)
    monkeypatch.setattr(TrainingState, "save", save)
    assert call(monkeypatch, f"--resume={tmp_path / 'run_1'}") == 0
    assert_same_run(reference, tmp_path / "run_1")
    ours, theirs = (
        torch.load(folder / "checkpoints" / "best.pt", weights_only=True)["best_loss"]
        for folder in (tmp_path / "run_1", reference)
    )
    assert ours == theirs


@pytest.mark.slow(copies=True)
def test_printed_command_continues(monkeypatch, tmp_path, capsys):
    """What a stopped run prints can be pasted; it goes past the step that it was stopped at."""
    reference = reference_run(monkeypatch, tmp_path)
    capsys.readouterr()
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=6") == 0
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert command[:3] == ["uv", "run", "python"]
    assert call(monkeypatch, *command[4:]) == 0
    assert_same_run(reference, tmp_path / "run_1")
