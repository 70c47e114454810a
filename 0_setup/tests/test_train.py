"""The train script: what a run leaves behind, that it repeats, and that it survives a kill."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys

import pytest
import pytorch_train
import torch

from src.run.config import CHAPTER
from src.run.errors import one_line_errors
from tests.runs import (
    TINY,
    assert_same_run,
    call,
    finish,
    rows,
    saved,
    start,
    train,
    wait_for_step,
    wait_until_gone,
)


def test_leaves_everything_behind(monkeypatch, tmp_path):
    """The best checkpoint, too, after a resume. Broken by: no best_loss in TrainingState.load."""
    val_losses = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(
        pytorch_train, "evaluate", lambda *_: {"val_loss": next(val_losses)}
    )
    settings = ["--trainer.max_steps=8", "--trainer.picture_every_n_epochs=3"]
    folder = train(monkeypatch, tmp_path, *settings)
    call(monkeypatch, f"--resume={folder}")
    files = ["checkpoints", "config.yaml", "curves.png", "metrics.csv"]
    files += ["reconstructions.png", "summary.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    table = rows(folder)
    steps = [int(row["step"]) for row in table if row["train_loss"]]
    assert steps == list(range(1, 13))
    assert [row["step"] for row in table if row["val_loss"]] == ["4", "8", "12"]
    assert saved(folder, "best.pt")["step"] == 8
    shutil.rmtree(folder / "checkpoints")  # somebody needs the disk
    train(monkeypatch, tmp_path, "--trainer.max_steps=1")
    assert {path.name for path in tmp_path.iterdir()} == {"run_1", "run_2"}
    assert rows(folder) == table


def test_same_seed_same_bits_other_seed_other_curve(monkeypatch, tmp_path):
    reference = train(monkeypatch, tmp_path / "a")
    workers = train(monkeypatch, tmp_path / "b", "--data.num_workers=2")
    assert_same_run(reference, workers)
    assert not list(reference.glob("*.png"))  # picture_every_n_epochs is 0
    assert torch.are_deterministic_algorithms_enabled()
    settings = ["--seed_everything=1", "--trainer.deterministic=false"]
    other = train(monkeypatch, tmp_path / "c", *settings)
    assert not torch.are_deterministic_algorithms_enabled()
    first, second = (
        {row["train_loss"] for row in rows(f)} - {""} for f in (reference, other)
    )
    assert not first & second


@pytest.mark.parametrize("stop", [4, 7])
def test_a_stopped_run_goes_on_to_the_same_bits(monkeypatch, tmp_path, stop):
    """Between epochs, and inside one. Broken by: first_batch = 0; no whole_lines."""
    reference = train(monkeypatch, tmp_path / "reference")
    settings = [f"--trainer.max_steps={stop}", f"--data.num_workers={stop % 2}"]
    folder = train(monkeypatch, tmp_path / "stopped", *settings)
    assert saved(folder)["step"] == stop
    with (folder / "metrics.csv").open("a") as file:
        file.write("1,0")  # a full disk has cut the row of step 10
    assert call(monkeypatch, f"--resume={folder}") == 0
    assert_same_run(reference, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("phase", "steps"), [("Loaders", []), ("evaluate", [4]), ("report", [12])]
)
def test_a_signal_ends_a_run_in_any_phase(monkeypatch, tmp_path, phase, steps, number):
    """Data being opened, validation, report. Broken by: no close, no exit_at_signals."""
    function = getattr(pytorch_train, phase)

    def interrupted(*arguments, **settings):
        signal.raise_signal(number)
        return function(*arguments, **settings)

    monkeypatch.setattr(pytorch_train, phase, interrupted)
    with pytest.raises(SystemExit) as stopped, one_line_errors():
        sys.exit(call(monkeypatch, TINY, f"--trainer.output_dir={tmp_path}"))
    assert stopped.value.code == 128 + number
    assert [torch.load(path)["step"] for path in tmp_path.rglob("last.pt")] == steps


@pytest.mark.slow
def test_killed_at_a_random_step_it_goes_on_to_the_same_bits(monkeypatch, tmp_path):
    """SIGKILL: nothing can be saved then. Broken by: no state.scheduler in TrainingState.load."""
    settings = [
        "--data.dataset.num_samples=280",
        "--trainer.checkpoint_every_n_steps=7",
    ]
    reference = train(monkeypatch, tmp_path / "reference", *settings)
    process = start(tmp_path, *settings)
    folder = tmp_path / "run_1"
    wait_for_step(process, folder, random.randrange(10, 60))
    process.kill()
    process.communicate()
    assert call(monkeypatch, f"--resume={folder}") == 0
    assert_same_run(reference, folder)


@pytest.mark.slow
def test_a_signal_saves_and_ends(tmp_path):
    """To all processes, workers too. Broken by: is_stopping without stop.number."""
    number = random.choice([signal.SIGINT, signal.SIGTERM])
    endless = ["--data.dataset.num_samples=800000", "--data.num_workers=2"]
    process = start(tmp_path, *endless)
    folder = tmp_path / "run_1"
    wait_for_step(process, folder, 20)
    os.killpg(process.pid, number)
    output = finish(process, 128 + number)
    assert f"stopped after step {saved(folder)['step']}; go on with --resume" in output
    wait_until_gone(process.pid)  # workers, too


@pytest.mark.slow
def test_killed_while_saving(tmp_path):
    """Saved over and over and killed: the file is whole. Broken by: no temporary in save_atomic."""
    program = f"""if True:
        import os, pathlib, random, threading, torch
        from src.run.checkpoint import save_atomic
        path = pathlib.Path("{tmp_path}/last.pt")
        for number in range(10**9):
            save_atomic({{"number": torch.full((200_000,), number)}}, path)
            if number == 20:
                threading.Timer(random.random() / 10, os.kill, (os.getpid(), 9)).start()
    """
    assert subprocess.run([sys.executable, "-c", program], cwd=CHAPTER).returncode == -9
    number = torch.load(tmp_path / "last.pt", weights_only=True)["number"]
    assert number.unique().numel() == 1


def test_wandb_that_is_killed_ends_nothing(monkeypatch, tmp_path):
    """A cluster sends SIGTERM to wandb's process, too. Broken by: no except ConnectionError."""
    program = f"""if True:
        import pathlib, psutil
        from src.run.tracking import Tracker
        tracker = Tracker(pathlib.Path("{tmp_path}"), "offline", 0, "")
        for process in psutil.Process().children():
            process.terminate()
            process.wait()
        for step in range(100):
            tracker.log(step, 1, {{"train_loss": 0.5}})
    """
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # that of another test's run
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=CHAPTER, capture_output=True, text=True, check=True
    )
    assert "its process has ended" in done.stdout
    assert "Traceback" not in done.stderr
    assert (tmp_path / "metrics.csv").read_text().splitlines()[-1] == "99,1,0.5"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # minutes beside other work
def test_the_default_run_beats_three_baselines_and_loses_to_the_fourth(tmp_path):
    """With the scores of the README, in a copy of the chapter. Broken by: lr 4e-5."""
    chapter = tmp_path / "elsewhere"
    shutil.copytree(CHAPTER, chapter, ignore=shutil.ignore_patterns("output"))
    # On a CPU: a Mac's GPU computes other digits.
    settings = ["accelerator=cpu", "picture_every_n_epochs=0", "wandb=disabled"]
    command = [sys.executable, "pytorch_train.py"]
    command += [f"--trainer.{setting}" for setting in settings]
    subprocess.run(command, cwd=chapter, check=True)
    scores = json.loads((chapter / "output" / "run_1" / "summary.json").read_text())[
        "validation"
    ]
    found = {
        name: metrics["rmse_surface_temperature"] for name, metrics in scores.items()
    }
    printed = (CHAPTER / "README.md").read_text().partition("hidden values only")[2]
    shown = {name: float(re.search(rf"{name} +([\d.]+)", printed)[1]) for name in found}
    assert found == pytest.approx(shown, abs=0.015)
    model = found.pop("masked autoencoder")
    assert found.pop("interpolated anomalies") < model < min(found.values()) - 0.1
