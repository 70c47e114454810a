"""lightning_train.py: what a run prints and leaves behind, and what must not change the result."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
from src.lightning_errors import one_line_errors
from src.lightning_ranks import SharedError

from tests.lightning_runs import assert_same_lightning_run as assert_same
from tests.lightning_runs import (
    call_lightning,
    lightning_weights,
    shared_reference,
    train_lightning,
)
from tests.runs import TINY, reference_run, rows


@pytest.fixture
def reference(tmp_path_factory):
    return shared_reference(tmp_path_factory.getbasetemp())


# The third of three epochs is not the best one.
WORSE = ["--optimizer.lr=0.3", "--optimizer.warmup_fraction=0.9", "--trainer.gradient_clip_val=9"]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())["validation"]


@pytest.mark.slow(copies=True)
def test_leaves_behind_what_chapter_0_leaves(monkeypatch, tmp_path, reference):
    """The same files but for the names of the checkpoints; the same scores and baselines."""
    raw = reference_run(monkeypatch, tmp_path)
    ours, theirs = ({path.name for path in folder.rglob("*")} for folder in (reference, raw))
    assert ours == {name.replace(".pt", ".ckpt") for name in theirs}
    assert {"metrics.csv", "config.yaml", "curves.png", "best.ckpt", "last.ckpt"} <= ours
    ours, theirs = summary(reference), summary(raw)
    assert (
        ours.keys() == theirs.keys() == {"masked autoencoder", "inverse distance", "visible mean"}
    )
    for name, scores in ours.items():
        assert scores == pytest.approx({key: theirs[name][key] for key in scores}, rel=1e-12), name


def test_prints_what_runs_where(monkeypatch, tmp_path, capsys):
    assert train_lightning(monkeypatch, tmp_path, "--trainer.max_steps=1") == 0
    printed = capsys.readouterr().out
    for expected in (
        "device    cpu (",
        "ranks     1 (1 on each of 1 nodes), accelerator CPUAccelerator, strategy SingleDevice",
        "data      34 training, 34 validation samples of shape (2, 4, 8, 8)",
        "training  steps 0 to 12, 8 samples each: 8 on each rank",
        f"output    {os.path.relpath(tmp_path / 'run_1')}",
    ):
        assert printed.count(expected) == 1, expected


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_bar_on_a_terminal_only(monkeypatch, tmp_path, capsys, is_terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert train_lightning(monkeypatch, tmp_path, "--trainer.max_epochs=1") == 0
    assert ("Epoch 0:" in "".join(capsys.readouterr())) == is_terminal


def test_best_and_last_checkpoint(monkeypatch, tmp_path):
    """The lowest validation loss is not the last one here."""
    assert train_lightning(monkeypatch, tmp_path, *WORSE) == 0
    folder = tmp_path / "run_1"
    losses = {int(r["step"]): float(r["val_loss"]) for r in rows(folder) if r["val_loss"]}
    for name, step in (("best", min(losses, key=losses.get)), ("last", 12)):
        saved = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
        assert saved["global_step"] == step, name
    assert min(losses, key=losses.get) != 12


def test_config_repeats_the_run(monkeypatch, tmp_path, reference, capsys):
    """The config.yaml that a run leaves, and the same from --print_config."""
    config = reference / "config.yaml"
    where = f"--trainer.output_dir={tmp_path}"
    assert call_lightning(monkeypatch, f"--config={config}", where) == 0
    assert_same(reference, tmp_path / "run_1")
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        call_lightning(monkeypatch, f"--config={config}", "--print_config")
    assert caught.value.code == 0
    assert capsys.readouterr().out.strip() == config.read_text().strip()


def test_sanity_check_changes_nothing(monkeypatch, tmp_path, reference):
    """Lightning validates two batches before the first step; without it the run is the same."""
    without = partial(L.Trainer, num_sanity_val_steps=0)
    monkeypatch.setattr("lightning_train.L.Trainer", without)
    assert train_lightning(monkeypatch, tmp_path) == 0
    assert_same(reference, tmp_path / "run_1")


@pytest.mark.slow
@pytest.mark.parametrize(("every", "epochs"), [(0, []), (1, [1, 2]), (2, [2])])
def test_pictures(monkeypatch, tmp_path, reference, every, epochs):
    """After these epochs and at the end; drawing them changes nothing."""
    drawn = []
    monkeypatch.setattr("src.tracking.Tracker.show", lambda _, step, path: drawn.append(step))
    assert train_lightning(monkeypatch, tmp_path, f"--trainer.picture_every_n_epochs={every}") == 0
    assert drawn == [4 * epoch for epoch in [*epochs, 3] for _ in range(2)]
    assert_same(reference, tmp_path / "run_1")


def test_infinite_gradient_stops_before_the_weights_change(monkeypatch, tmp_path):
    arguments = ["--optimizer.lr=1e30", "--trainer.checkpoint_every_n_steps=1"]
    message = r"^step \d+: the norm of the gradient is \w+; stopped before .*optimizer.lr"
    with pytest.raises(SharedError, match=message) as caught:
        train_lightning(monkeypatch, tmp_path, *arguments)
    assert "\n" not in str(caught.value)
    assert all(torch.isfinite(t).all() for t in lightning_weights(tmp_path / "run_1").values())


def test_full_disk_keeps_the_checkpoint_before(monkeypatch, tmp_path, reference):
    """The second epoch's checkpoints cannot be written; the run goes on from the first one's."""
    folder, replace = tmp_path / "run_1", Path.replace

    def full_disk(path, target):
        if (folder / "checkpoints" / "last.ckpt").exists() and target.suffix == ".ckpt":
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full_disk)
    message = "error: cannot write .*No space left.*; its last version is intact"
    with pytest.raises(SystemExit, match=message), one_line_errors():
        train_lightning(monkeypatch, tmp_path)
    monkeypatch.undo()
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert call_lightning(monkeypatch, f"--resume={folder}") == 0
    assert_same(reference, folder)


@pytest.mark.slow
def test_wandb_offline_run_is_continued(monkeypatch, tmp_path):
    """Two folders of one run: the same id."""
    arguments = [*TINY, f"--trainer.output_dir={tmp_path}", "--trainer.wandb=offline"]
    assert call_lightning(monkeypatch, *arguments, "--trainer.max_steps=6") == 0
    folder = tmp_path / "run_1"
    assert call_lightning(monkeypatch, f"--resume={folder}", "--trainer.max_steps=-1") == 0
    first, second = sorted((folder / "wandb").glob("offline-run-*"))
    # offline-run-TIME-ID, and a number behind it if both began in the same second
    assert first.name.split("-")[3] == second.name.split("-")[3]
    assert list(second.glob("*.wandb"))
