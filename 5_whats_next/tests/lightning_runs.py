"""Helpers of the tests that run Lightning: in this process, on ranks, as processes of their own."""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import lightning_train
import lightning_trainer
import numpy as np
import pytest
import torch
from src.config import CHAPTER

from tests.runs import TINY, rows

SCRIPT = CHAPTER / "lightning_train.py"
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]
# 38 steps of a tiny model in each of two epochs, on real ocean; windows differ in how much land
# they have, and 15 of them are validated: an odd number.
OCEAN = [
    "--data.dataset.train_stride=[3,2,20]",
    "--data.dataset.val_stride=[12,4,29]",
    "--data.batch_size=8",
    "--model.embed_dim=16",
    "--model.decoder_embed_dim=16",
    "--trainer.max_epochs=2",
    "--trainer.log_every_n_steps=1",
    "--trainer.picture_every_n_epochs=0",
    "--trainer.accelerator=cpu",
    "--trainer.wandb=disabled",
]


def call_lightning(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """lightning_train.py in this process, which saves the seconds that importing torch takes."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(sys, "argv", ["lightning_train.py", *arguments])
    return lightning_train.main()


def train_lightning(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> int:
    """A new run of the tiny model; its folder is ``output/run_1``."""
    return call_lightning(monkeypatch, *TINY, f"--trainer.output_dir={output}", *arguments)


@functools.cache
def shared_reference(folder: Path) -> Path:
    """The folder of an uninterrupted Lightning run of twelve steps, four in each epoch.

    Several test files compare theirs with it; it runs once, in ``folder``.
    """
    output = folder / f"lightning_reference_{CHAPTER.name}"  # other chapters have other settings
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert train_lightning(monkeypatch, output) == 0
    return output / "run_1"


# The tiny model for LightningCLI, which has two of these settings elsewhere.
TINY_CLI = [word for word in TINY if "picture_every" not in word]


def call_cli(monkeypatch: pytest.MonkeyPatch, subcommand: str, *arguments: str) -> int:
    """``python -m lightning_trainer`` in this process."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(sys, "argv", ["lightning_trainer", subcommand, *arguments])
    return lightning_trainer.main()


def run_cli(monkeypatch: pytest.MonkeyPatch, subcommand: str, output: Path, *arguments: str) -> int:
    """A subcommand with the tiny model."""
    where = f"--trainer.logger.init_args.output_dir={output}"
    return call_cli(monkeypatch, subcommand, *TINY_CLI, where, *arguments)


def lightning_weights(folder: Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    """The weights of a Lightning checkpoint, with chapter 0's names."""
    state = torch.load(folder / "checkpoints" / name, weights_only=True)["state_dict"]
    return {key.removeprefix("model."): tensor for key, tensor in state.items()}


def step_of(folder: Path, name: str = "last") -> int:
    """The step after which a checkpoint was saved."""
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)["global_step"]


def float32_rows(folder: Path) -> list[dict[str, np.float32 | None]]:
    """metrics.csv with the precision of ``self.log``, which keeps 32 bits."""
    return [
        {key: np.float32(value) if value else None for key, value in row.items()}
        for row in rows(folder)
    ]


def curve(folder: Path) -> np.ndarray:
    """Losses of training and validation in the order of the rows."""
    found = [row["train_loss"] or row["val_loss"] for row in rows(folder)]
    return np.array([float(loss) for loss in found])


def assert_same_lightning_run(a: Path, b: Path) -> None:
    """The same rows and the same weights: to the bit."""
    assert rows(a) == rows(b)
    ours, theirs = lightning_weights(a), lightning_weights(b)
    assert ours.keys() == theirs.keys()
    assert all(ours[key].equal(theirs[key]) for key in ours)


def torchrun(*arguments: str, **settings) -> subprocess.Popen:
    """Torchrun as a process of its own; two processes on free ports of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    settings["env"] = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | settings
    return subprocess.Popen(command, cwd=CHAPTER, **settings)


def run_on_two_ranks(*command: str) -> tuple[int, str]:
    """Exit code and output; a launch that hangs is ended."""
    start = ("--standalone", "--nproc-per-node=2", *command)
    process = torchrun(*start, start_new_session=True)
    try:
        printed, _ = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # torchrun ends its ranks, after 30 s by force
        raise AssertionError(f"hangs:\n{process.communicate()[0]}") from None
    return process.returncode, printed


def on_two_ranks(trainings: list[tuple[str, str, list[str]]]) -> None:
    """Run trainings (see two_ranks.py) on two processes, one after the other."""
    code, printed = run_on_two_ranks("tests/two_ranks.py", json.dumps(trainings))
    assert code == 0, printed
