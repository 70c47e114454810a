"""Scaling up changes no result: raw PyTorch, Lightning, its command line; stopped or not."""

import os
import signal
import sys

import lightning_train
import lightning_trainer
import pytest
import torch

from src.run.config import CHAPTER
from src.run.errors import one_line_errors
from tests.runs import assert_same_run, call, new, rows, saved, train


def assert_raw_is_lightning(raw, folder):
    assert rows(raw) == rows(folder)
    weights = {f"model.{name}": weight for name, weight in saved(raw)["model"].items()}
    torch.testing.assert_close(saved(folder)["state_dict"], weights, rtol=0, atol=0)


def test_lightning_is_raw_pytorch_to_the_bit(monkeypatch, tmp_path):
    """With land and clipped gradients. Broken by: no configure_gradient_clipping (at step 2)."""
    settings = [f"-c={CHAPTER}/tests/ocean.yaml", "--trainer.max_epochs=1"]
    raw = train(monkeypatch, tmp_path / "raw", *settings)
    output = tmp_path / "lightning"
    folder = train(monkeypatch, output, *settings, script=lightning_train)
    assert_raw_is_lightning(raw, folder)
    assert (raw / "summary.json").read_text() == (folder / "summary.json").read_text()


def signal_at(monkeypatch, place: str, call_number: int = 1) -> None:
    """SIGTERM at a call of what ``place`` names in src."""
    module, _, name = place.rpartition(".")
    module = sys.modules[f"src.{module}"]
    function = getattr(module, name)
    calls = []

    def interrupted(*arguments, **settings):
        calls.append(1)
        if len(calls) == call_number:
            signal.raise_signal(signal.SIGTERM)
        return function(*arguments, **settings)

    monkeypatch.setattr(module, name, interrupted)
    codes: list[int] = []  # Lightning may call it again, while it cleans up
    exit_once = lambda code: codes.append(code) or sys.exit(codes[0])  # noqa: E731
    monkeypatch.setattr(os, "_exit", exit_once)


CLIP = "model.lightning_module.clip_gradients"


@pytest.mark.slow
def test_the_command_line_gives_the_same_run(monkeypatch, tmp_path):
    """And goes on inside an epoch; it scores and predicts. Broken by: no parents[1]."""
    monkeypatch.setattr(lightning_trainer, "CHAPTER", tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    raw = train(monkeypatch, tmp_path / "raw")
    files = ["config/cli_config.yaml", "tests/cli.yaml"]
    settings = [f"-c={CHAPTER}/{file}" for file in files]
    with monkeypatch.context() as stop:
        signal_at(stop, CLIP, 7)
        with pytest.raises(SystemExit, match="143"):
            call(stop, "fit", *settings, script=lightning_trainer)
    settings.append(f"--ckpt_path={tmp_path}/output/run_1/checkpoints/last.ckpt")
    for name in ("fit", "test", "predict"):
        call(monkeypatch, name, *settings, script=lightning_trainer)
    assert_raw_is_lightning(raw, tmp_path / "output" / "run_1")


@pytest.mark.parametrize("stop", [4, 7])
def test_a_stopped_run_goes_on_to_the_same_bits(monkeypatch, tmp_path, stop):
    """In a folder that has moved. Broken by: a fixed step in train_loader; no dirpath mended."""
    reference = train(monkeypatch, tmp_path / "reference", script=lightning_train)
    settings = [f"--trainer.max_steps={stop}", f"--data.num_workers={stop % 2}"]
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path / "stopped", *settings, script=lightning_train)
    folder = (tmp_path / "stopped" / "run_1").rename(tmp_path / "moved")
    (folder / "metrics.csv").unlink()
    call(monkeypatch, f"--resume={folder}", script=lightning_train)
    assert_same_run(reference, folder)
    scores = [saved(run)["callbacks"] for run in (reference, folder)]
    best = [str(v["best_model_score"]) for s in scores for v in s.values() if v]
    assert best[0] == best[1]


PHASES = {
    "model.lightning_module.make_optimizer": [],
    CLIP: [1],
    "model.lightning_module.to_scores": [4],
    "callbacks.report.report": [12],
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_ends_a_run_in_any_phase(monkeypatch, tmp_path, phase):
    """Before the steps, in one, in a validation, after them.

    Broken by: no setup in StopAndSave; no exit_at_signals in on_train_end.
    """
    signal_at(monkeypatch, phase)
    with pytest.raises(SystemExit, match="143"), one_line_errors():
        call(monkeypatch, *new(tmp_path), script=lightning_train)
    paths = tmp_path.rglob("last.ckpt")
    steps = [torch.load(path, weights_only=True)["global_step"] for path in paths]
    assert steps == PHASES[phase]
