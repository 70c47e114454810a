"""Scaling up changes no result: raw PyTorch, Lightning, its command line; stopped or not."""

import lightning_train
import lightning_trainer
import numpy as np
import pytest
import torch
from src.config import CHAPTER

from tests.runs import call, rows, saved, train


def assert_raw_is_lightning(raw, folder):
    assert rows(raw) == rows(folder)
    weights = {f"model.{name}": weight for name, weight in saved(raw)["model"].items()}
    torch.testing.assert_close(saved(folder, "last.ckpt")["state_dict"], weights, rtol=0, atol=0)


def test_lightning_is_raw_pytorch_to_the_bit(monkeypatch, tmp_path):
    """With land and clipped gradients. Broken by: no configure_gradient_clipping (at step 2)."""
    settings = [f"-c={CHAPTER}/tests/ocean.yaml", "--trainer.max_epochs=1"]
    raw = train(monkeypatch, tmp_path / "raw", *settings)
    folder = train(monkeypatch, tmp_path / "lightning", *settings, script=lightning_train)
    assert_raw_is_lightning(raw, folder)


def test_the_command_line_gives_the_same_run(monkeypatch, tmp_path):
    """With chapter 0's files; and it scores and predicts from the checkpoint."""
    monkeypatch.setattr(lightning_trainer, "CHAPTER", tmp_path)
    raw = train(monkeypatch, tmp_path / "raw")
    cli = [f"-c={CHAPTER}/tests/tiny_cli.yaml", "--trainer.enable_progress_bar=false"]
    call(monkeypatch, "fit", *cli, script=lightning_trainer)
    folder = tmp_path / "output" / "run_1"
    assert_raw_is_lightning(raw, folder)
    assert {path.name for path in folder.iterdir()} - {"wandb"} == {p.name for p in raw.iterdir()}
    cli += [f"--ckpt_path={folder}/checkpoints/last.ckpt"]
    for subcommand in ("validate", "test", "predict"):
        call(monkeypatch, subcommand, *cli, script=lightning_trainer)
    with np.load(folder.with_name("run_4") / "prediction_0_0.npz") as prediction:
        assert prediction["fields"].shape == (4, 2, 4, 8, 8)


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_stopped_run_goes_on_to_the_same_bits(monkeypatch, tmp_path, stop):
    """At the first step, between epochs, inside one. Broken by: a fixed step in train_loader."""
    raw = train(monkeypatch, tmp_path / "raw")
    settings = [f"--trainer.max_steps={stop}", f"--data.num_workers={stop % 2}"]
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, *settings, script=lightning_train)
    assert saved(tmp_path / "run_1", "last.ckpt")["global_step"] == stop
    call(monkeypatch, f"--resume={tmp_path}/run_1", script=lightning_train)
    assert_raw_is_lightning(raw, tmp_path / "run_1")
