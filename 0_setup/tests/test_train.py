"""The train script: what a run leaves behind, that it repeats, and that it survives a kill."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import pytorch_train

from src.data.sampler import ResumableBatches
from src.run.checkpoint import read_checkpoint
from src.run.config import CHAPTER
from src.run.errors import one_line_errors
from tests.runs import (
    assert_same_run,
    call,
    finish,
    new,
    rows,
    saved,
    start,
    train,
    wait_for_step,
)


@pytest.mark.parametrize("stop", [4, 7])
def test_a_stopped_run_goes_on_to_the_same_bits(monkeypatch, tmp_path, stop):
    """Between epochs, and inside one; a checkpoint is all that it needs.

    Broken by: first_batch = 0 in ResumableBatches; no rows in TrainingState.load.
    """
    reference = train(monkeypatch, tmp_path / "reference")
    settings = [f"--trainer.max_steps={stop}", f"--data.num_workers={stop % 2}"]
    folder = train(monkeypatch, tmp_path / "stopped", *settings)
    for name in ("config.yaml", "metrics.csv"):
        (folder / name).unlink()
    assert call(monkeypatch, f"--resume={folder}") == 0
    assert_same_run(reference, folder)
    files = {path.name for path in folder.iterdir()}
    assert files == {path.name for path in reference.iterdir()}


def test_the_best_checkpoint_stays(monkeypatch, tmp_path):
    """Also after a resume. Broken by: no best_loss in TrainingState.load."""
    losses = iter([3.0, 1.0, 2.0])
    scores = lambda *_: {"val_loss": next(losses)}  # noqa: E731
    monkeypatch.setattr(pytorch_train, "evaluate", scores)
    monkeypatch.setattr(pytorch_train, "plot_curves", lambda *_: None)
    folder = train(monkeypatch, tmp_path, "--trainer.max_steps=8")
    call(monkeypatch, f"--resume={folder}")
    assert saved(folder, "best.ckpt")["step"] == 8


def test_the_order_is_a_function_of_seed_and_epoch():
    """In one file, without an import of ours. Broken by: no epoch in epoch_order."""
    assert "from src" not in (CHAPTER / "src" / "data" / "sampler.py").read_text()
    first, second = (list(ResumableBatches(20, 6, 0, lambda s=s: s)) for s in (0, 3))
    assert len({number for batch in first for number in batch}) == 18
    assert first != second
    assert list(ResumableBatches(20, 6, 0, lambda: 4)) == second[1:]
    assert list(ResumableBatches(20, 6, 1, lambda: 0)) != first


@pytest.mark.parametrize(
    ("phase", "number"), [("Loaders", signal.SIGINT), ("report", signal.SIGTERM)]
)
def test_a_signal_outside_the_steps(monkeypatch, tmp_path, phase, number):
    """It ends the program at once. Broken by: no exit_at_signals in one_line_errors, or main."""
    get_signal = lambda *_, **__: signal.raise_signal(number)  # noqa: E731
    monkeypatch.setattr(pytorch_train, phase, get_signal)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match=str(128 + number)), one_line_errors():
        call(monkeypatch, *new(tmp_path))
    assert any(tmp_path.iterdir()) == (phase == "report")


@pytest.mark.slow
def test_killed_at_a_random_step_it_goes_on_to_the_same_bits(monkeypatch, tmp_path):
    """SIGKILL: nothing can be saved then. Broken by: no scheduler in STATEFUL."""
    settings = [
        "--data.dataset.num_samples=280",
        "--trainer.checkpoint_every_n_steps=7",
    ]
    reference = train(monkeypatch, tmp_path / "reference", *settings)
    process = start("pytorch_train.py", *new(tmp_path), *settings)
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
    process = start("pytorch_train.py", *new(tmp_path), *endless)
    folder = tmp_path / "run_1"
    wait_for_step(process, folder, 20)
    os.killpg(process.pid, number)
    output = finish(process, 128 + number)
    assert f"stopped after step {saved(folder)['step']}; go on with --resume" in output
    with contextlib.suppress(ProcessLookupError):
        while not os.killpg(process.pid, 0):  # workers notice within seconds
            time.sleep(0.1)


@pytest.mark.slow
def test_killed_while_saving(tmp_path):
    """The file is whole, whenever it was. Broken by: no temporary in atomic_write."""
    program = f"""if True:
        import os, pathlib, random, threading, torch
        from src.run.checkpoint import atomic_write
        path = pathlib.Path("{tmp_path}/last.ckpt")
        for number in range(10**9):
            with atomic_write(path) as file:
                torch.save({{"number": torch.full((200_000,), number)}}, file)
            if number == 20:
                threading.Timer({random.random() / 10}, os.kill, (os.getpid(), 9)).start()
    """
    assert subprocess.run([sys.executable, "-c", program], cwd=CHAPTER).returncode == -9
    number = read_checkpoint(tmp_path / "last.ckpt")["number"]
    assert number.unique().numel() == 1


@pytest.mark.slow
def test_a_copy_of_the_chapter_trains_on_real_data(tmp_path):
    """With its default settings. Broken by: an import from another folder."""
    chapter = tmp_path / "elsewhere"
    shutil.copytree(CHAPTER, chapter, ignore=shutil.ignore_patterns("output"))
    command = [sys.executable, "pytorch_train.py", "--trainer.wandb=disabled"]
    subprocess.run([*command, "--trainer.max_steps=10"], cwd=chapter, check=True)
    assert rows(chapter / "output" / "run_1")[0]["step"] == "10"
