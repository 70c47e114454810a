"""Helpers of the tests that run the train script: in this process, or as a process of its own."""

import contextlib
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import pytorch_train
import torch
from src.config import CHAPTER

SCRIPT = CHAPTER / "pytorch_train.py"
os.environ.setdefault("CLOUD_STORAGE_PATH", "none")  # uploads have tests of their own
# Twelve steps of a tiny model on noise: four in each of three epochs.
TINY = [
    "--data.dataset=DummyDataset",
    "--data.dataset.sample_shape=[2,4,8,8]",
    "--data.dataset.num_samples=34",
    "--data.dataset.num_val_samples=34",
    "--data.batch_size=8",
    "--model.patch_size=[2,4,4]",
    "--model.embed_dim=16",
    "--model.decoder_embed_dim=16",
    "--trainer.max_epochs=3",
    "--trainer.log_every_n_steps=1",
    "--trainer.picture_every_n_epochs=0",
    "--trainer.accelerator=cpu",
]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run main() in this process, which saves the seconds that importing torch takes."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(sys, "argv", ["pytorch_train.py", *arguments])
    return pytorch_train.main()


def train(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> int:
    """A new run of the tiny model; its folder is ``output/run_1``."""
    return call(monkeypatch, *TINY, f"--trainer.output_dir={output}", *arguments)


def reference_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of an uninterrupted run of twelve steps."""
    assert train(monkeypatch, tmp_path / "reference") == 0
    return tmp_path / "reference" / "run_1"


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without the one column that is a measurement."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [
            {k: v for k, v in r.items() if k != "samples_per_second"} for r in csv.DictReader(file)
        ]


def weights(folder: Path, name: str = "last.pt") -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / name, weights_only=True)["model"]


def assert_same_run(a: Path, b: Path) -> None:
    """The same losses, learning rates and validation scores, and the same weights: to the bit."""
    assert rows(a) == rows(b)
    for one, other in zip(weights(a).values(), weights(b).values(), strict=True):
        assert one.equal(other)


def start(tmp_path: Path, *arguments: str, **settings) -> subprocess.Popen:
    """The script as a process of its own."""
    command = [sys.executable, str(SCRIPT), *TINY, f"--trainer.output_dir={tmp_path}", *arguments]
    settings["env"] = os.environ | {"WANDB_MODE": "disabled"}
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | settings
    return subprocess.Popen(command, **settings)


def wait_until_gone(group: int) -> None:
    """Return as soon as no process of a process group runs any more.

    The last ones notice within moments that the others have ended; zombies do not count.
    """
    deadline = time.monotonic() + 20
    while running := [p for p in psutil.process_iter(["status"]) if belongs_to(p, group)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.05)


def belongs_to(process: psutil.Process, group: int) -> bool:
    try:
        return process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group
    except ProcessLookupError:
        return False


LONG = ["--data.dataset.num_samples=4000", "--trainer.max_epochs=2"]  # 1000 steps


def wait_for_step(process: subprocess.Popen, folder: Path, step: int) -> None:
    """Return as soon as ``step`` is in metrics.csv."""
    while process.poll() is None:
        if (folder / "metrics.csv").exists():
            logged = [row["step"] for row in rows(folder) if row["step"]]
            if logged and int(logged[-1]) >= step:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)  # rather than spin: the training needs the processor
    raise AssertionError(f"ended before step {step}:\n{process.communicate()[0]}")
