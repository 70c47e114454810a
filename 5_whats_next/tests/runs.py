"""Runs of the train script, in this process, which saves an import of torch, or in another one."""

import contextlib
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import lightning_train
import torch

from src.run.config import CHAPTER

TINY = f"-c={CHAPTER}/tests/tiny.yaml"
# In front of a script, for start(): its main() would import Lightning only to launch it twice.
TWO_RANKS = [
    "-c",
    """import runpy, sys
from src.run.launch import has_rank, launch
has_rank() or sys.exit(launch(2))
runpy.run_path(sys.argv.pop(1), run_name="__main__")""",
]


def call(monkeypatch, *arguments: str, script=lightning_train) -> int:
    """The exit code of a train script's main()."""
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    return script.main()


def train(monkeypatch, output: Path, *arguments: str, script=lightning_train) -> Path:
    """The folder of a new run of the tiny model."""
    output_dir = f"--trainer.output_dir={output}"
    assert not call(monkeypatch, TINY, output_dir, *arguments, script=script)
    return output / "run_1"


def start(
    output: Path, *arguments: str, command=("lightning_train.py",)
) -> subprocess.Popen:
    """The script as the leader of a process group of its own."""
    words = [
        sys.executable,
        *command,
        TINY,
        f"--trainer.output_dir={output}",
        *arguments,
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, cwd=CHAPTER, start_new_session=True, **pipes)


def wait_until_gone(group: int) -> None:
    """Return as soon as no process of a group is left; what was killed may take a moment."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            time.sleep(0.1)


def wait_for_step(process: subprocess.Popen, folder: Path, step: int) -> None:
    """Return as soon as metrics.csv has that many rows."""
    while not (folder / "metrics.csv").exists() or len(rows(folder)) < step:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)  # rather than spin: the training needs the processor
        assert process.returncode is None, process.communicate()[0]


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without the columns that are measurements."""
    with (folder / "metrics.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    measured = ("samples_per_second", "train_upload_age_steps")
    return [{k: v for k, v in row.items() if k not in measured} for row in table]


def saved(folder: Path, name: str = "last.ckpt") -> dict:
    return torch.load(folder / "checkpoints" / name, weights_only=True)
