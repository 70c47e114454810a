"""The train script: what a run leaves behind, and that it repeats."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from src.config import CHAPTER
from src.reproducibility import set_seed

from tests.runs import assert_same_run, call, reference_run, rows, train


def test_leaves_everything_behind(monkeypatch, tmp_path):
    reference = reference_run(monkeypatch, tmp_path)
    names = {path.name for path in reference.iterdir()}
    assert {"metrics.csv", "summary.json", "config.yaml", "checkpoints"} <= names
    assert {"reconstructions.png", "curves.png"} <= names
    assert {path.name for path in (reference / "checkpoints").iterdir()} == {"last.pt", "best.pt"}
    table = rows(reference)
    assert [int(row["step"]) for row in table if row["train_loss"]] == list(range(1, 13))
    assert [int(row["step"]) for row in table if row["val_loss"]] == [4, 8, 12]
    assert set(json.loads((reference / "summary.json").read_text())["validation"]) == {
        "masked autoencoder",
        "inverse distance",
        "visible mean",
    }


def test_resuming_a_finished_run_reports_again(monkeypatch, tmp_path, capsys):
    reference = reference_run(monkeypatch, tmp_path)
    table = rows(reference)
    capsys.readouterr()
    assert call(monkeypatch, f"--resume={reference}") == 0
    assert rows(reference) == table
    printed = capsys.readouterr().out
    for expected in ("cpu (", "torch", "34 training", "validation RMSE of noise_1 (1)"):
        assert expected in printed


def test_noise_cannot_be_learned(monkeypatch, tmp_path):
    """The loss of white noise stays near 1; below it, hidden values would be leaking."""
    reference = reference_run(monkeypatch, tmp_path)
    losses = [float(row["val_loss"]) for row in rows(reference) if row["val_loss"]]
    assert all(0.97 < loss < 1.3 for loss in losses)


def test_best_checkpoint_has_the_lowest_loss(monkeypatch, tmp_path):
    reference = reference_run(monkeypatch, tmp_path)
    losses = {int(r["step"]): float(r["val_loss"]) for r in rows(reference) if r["val_loss"]}
    best = torch.load(reference / "checkpoints/best.pt", weights_only=True)
    assert best["global_step"] == min(losses, key=losses.get)
    assert best["best_loss"] == min(losses.values())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_same_seed_same_bits(monkeypatch, tmp_path, num_workers):
    reference = reference_run(monkeypatch, tmp_path)
    assert train(monkeypatch, tmp_path, f"--data.num_workers={num_workers}") == 0
    assert_same_run(reference, tmp_path / "run_1")


@pytest.mark.slow(copies=True)
def test_other_seed_other_curve(monkeypatch, tmp_path):
    reference = reference_run(monkeypatch, tmp_path)
    assert train(monkeypatch, tmp_path, "--seed_everything=1") == 0
    ours, theirs = (
        [row["train_loss"] for row in rows(folder) if row["train_loss"]]
        for folder in (tmp_path / "run_1", reference)
    )
    assert all(a != b for a, b in zip(ours, theirs, strict=True))


def test_runs_do_not_overwrite_each_other(monkeypatch, tmp_path):
    for _ in range(2):
        assert train(monkeypatch, tmp_path, "--trainer.max_steps=1") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run_1", "run_2"}


def test_trainer_settings_arrive(monkeypatch, tmp_path):
    """The keys that no object stores: seen where they are used."""
    seen = {}
    clip = torch.nn.utils.clip_grad_norm_

    def spy_clip(parameters, max_norm):
        seen["clip"] = max_norm
        return clip(parameters, max_norm)

    def spy_seed(seed, deterministic):
        seen["seed"] = (seed, deterministic)
        set_seed(seed, deterministic)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy_clip)
    monkeypatch.setattr("pytorch_train.set_seed", spy_seed)
    keys = ["--trainer.gradient_clip_val=0.5", "--trainer.deterministic=false"]
    keys += ["--trainer.log_every_n_steps=3", "--trainer.max_epochs=2", "--seed_everything=4"]
    assert train(monkeypatch, tmp_path, *keys) == 0
    set_seed(0, True)
    assert seen == {"clip": 0.5, "seed": (4, False)}
    logged = [int(row["step"]) for row in rows(tmp_path / "run_1") if row["train_loss"]]
    assert logged == [3, 6]


@pytest.mark.slow(copies=True)
def test_pictures_of_every_epoch(monkeypatch, tmp_path):
    """Drawing them changes nothing: the same bits as without."""
    reference = reference_run(monkeypatch, tmp_path)
    drawn = []
    monkeypatch.setattr(
        "src.tracking.Tracker.show", lambda _, step, path: drawn.append((step, path.name))
    )
    assert train(monkeypatch, tmp_path, "--trainer.picture_every_n_epochs=1") == 0
    names = ["reconstructions.png", "curves.png"]
    assert drawn == [(step, name) for step in (4, 8, 12) for name in names]
    assert_same_run(reference, tmp_path / "run_1")


@pytest.mark.slow
def test_a_copied_chapter_works(tmp_path):
    """Copy the folder elsewhere, run the blog's unittest command there."""
    ignored = shutil.ignore_patterns("output", "results", "__pycache__")
    shutil.copytree(CHAPTER, tmp_path / "elsewhere", ignore=ignored)
    command = [sys.executable, "-m", "unittest", "tests/test_parameters.py"]
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stderr
