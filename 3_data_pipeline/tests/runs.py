"""Runs of the train script, in this process, which saves an import of torch, or in another one."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lightning_train
import torch

from src.run.config import CHAPTER

TINY = f"-c={CHAPTER}/tests/tiny.yaml"


def call(monkeypatch, *arguments: str, script=lightning_train) -> int:
    """The exit code of a train script's main()."""
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    return script.main()


def new(output: Path) -> list[str]:
    """The settings of a new run of the tiny model."""
    return [TINY, f"--trainer.output_dir={output}"]


def train(monkeypatch, output: Path, *arguments: str, script=lightning_train) -> Path:
    """The folder of a new run of the tiny model."""
    assert not call(monkeypatch, *new(output), *arguments, script=script)
    return output / "run_1"


def start(*words: str) -> subprocess.Popen:
    """Python with these words, as the leader of a process group of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(
        [sys.executable, *words], cwd=CHAPTER, start_new_session=True, **pipes
    )


def finish(process: subprocess.Popen, exit_code: int = 0) -> str:
    """What a process prints until it ends, with this exit code; one that hangs is killed."""
    try:
        output, _ = process.communicate(timeout=500)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == exit_code, output
    return output


def wait_for_step(process: subprocess.Popen, folder: Path, step: int) -> None:
    """Return as soon as metrics.csv has that many rows."""
    while not (folder / "metrics.csv").exists() or len(rows(folder)) < step:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)  # rather than spin: the training needs the processor


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without the one column that is a measurement."""
    table = list(csv.DictReader((folder / "metrics.csv").open()))
    for row in table:
        row.pop("samples_per_second", None)
    return table


def saved(folder: Path, name: str = "last.ckpt") -> dict:
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def assert_same_run(a: Path, b: Path) -> None:
    """The same losses, learning rates, validation scores and weights: to the bit."""
    assert rows(a) == rows(b)
    key = "model" if "model" in saved(a) else "state_dict"
    torch.testing.assert_close(saved(a)[key], saved(b)[key], rtol=0, atol=0)
