"""Interrupted and killed Lightning runs go on to the same bits, and leave no process behind."""

import os
import signal

import pytest
from src.model.lightning_module import AutoencoderModule

from tests.lightning_runs import (
    SCRIPT,
    assert_same_lightning_run,
    call_lightning,
    shared_reference,
    step_of,
    train_lightning,
)
from tests.runs import LONG, start, wait_for_step, wait_until_gone


@pytest.fixture
def reference(tmp_path_factory):
    return shared_reference(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize(("hook", "step"), [("training_step", 5), ("validation_step", 4)])
def test_ctrl_c_loses_nothing(monkeypatch, tmp_path, reference, hook, step):
    """In the sixth step, and while the first epoch is validated, which has its best checkpoint."""
    original, sent = getattr(AutoencoderModule, hook), []

    def interrupted(module, *arguments):
        if module.global_step == step and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        return original(module, *arguments)

    monkeypatch.setattr(AutoencoderModule, hook, interrupted)
    assert train_lightning(monkeypatch, tmp_path) == 128 + signal.SIGINT
    folder = tmp_path / "run_1"
    assert (step_of(folder, "best"), step_of(folder)) == (4, 6 if hook == "training_step" else 4)
    assert call_lightning(monkeypatch, f"--resume={folder}") == 0
    assert_same_lightning_run(reference, folder)


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_bits(monkeypatch, tmp_path):
    """SIGKILL in the middle of an epoch: the last checkpoint counts."""
    shorter = ["--data.dataset.num_samples=400", "--trainer.checkpoint_every_n_steps=7"]
    assert train_lightning(monkeypatch, tmp_path / "straight", *shorter) == 0
    folder = tmp_path / "killed" / "run_1"
    monkeypatch.setattr("tests.runs.SCRIPT", SCRIPT)
    process = start(tmp_path / "killed", *shorter)
    wait_for_step(process, folder, 60)
    process.kill()
    process.communicate()
    assert call_lightning(monkeypatch, f"--resume={folder}") == 0
    assert_same_lightning_run(tmp_path / "straight" / "run_1", folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_and_ends(monkeypatch, tmp_path, number):
    """Ctrl-C goes to every process of the terminal, workers included; nothing is left behind."""
    monkeypatch.setattr("tests.runs.SCRIPT", SCRIPT)
    process = start(tmp_path, *LONG, "--data.num_workers=2", start_new_session=True)
    wait_for_step(process, tmp_path / "run_1", 20)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    assert "lightning_train.py --resume" in output
    saved = step_of(tmp_path / "run_1")
    assert 20 <= saved < 1000
    assert f"stopped after step {saved}" in output
    wait_until_gone(process.pid)
