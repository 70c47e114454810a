"""Helpers of the tests that upload: a run with checkpoints, and what lies in the cloud."""

import json
from pathlib import Path

import pytest
import torch
from src.checkpoint_files import identify, save_durably
from src.cloud_folder import CloudFolder
from src.cloud_run import CloudRun, read_copies

from tests.cloud_server import files


@pytest.fixture
def path(tmp_path) -> str:
    """A folder in the bucket that no other test has."""
    return f"s3://bucket/{tmp_path.name}"


def copies(path: str) -> list[tuple[str, int]]:
    """Names and steps of the checkpoints that the cloud says it has."""
    return [(copy.name, copy.step) for copy in read_copies(CloudFolder(path))]


def objects(path: str) -> list[str]:
    """What lies in a folder of the cloud."""
    fs = files()
    return sorted(name.rpartition("/")[2] for name in fs.find(path.removeprefix("s3://")))


def latest(path: str) -> dict:
    return json.loads(files().cat(f"{path}/latest.json"))


@pytest.fixture
def run(tmp_path) -> Path:
    """A run's folder, with one step's checkpoint."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "metrics.csv").write_text("step\n1\n")
    save(folder, 1)
    return folder


def save(run: Path, step: int, name: str = "last.ckpt") -> Path:
    path = run / "checkpoints" / name
    save_durably({"global_step": step, "weights": torch.full((9000,), float(step))}, path, step)
    return path


def writer(path: str, run_id: str = "one", keep: int = 2) -> CloudRun:
    copy = CloudRun(CloudFolder(path), run_id, keep)
    copy.claim()
    return copy


def upload(copy: CloudRun, run: Path, step: int, name: str = "last.ckpt") -> None:
    with (run / "metrics.csv").open("a") as file:
        file.write(f"{step}\n")
    path = save(run, step, name)
    copy.save(path, identify(path, name, step, []), run, 20.0)
