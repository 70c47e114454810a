"""Helpers of the tests of the study: a tiny one, on noise."""

import csv
import functools
import sys
from pathlib import Path

import pytest
import study
import yaml

TINY = {
    "trials": 6,
    "seeds": 2,
    "samples": 64,
    "evaluations": 4,
    "seed": 0,
    "evaluation_mask_ratio": 0.5,
    "random_trials": 3,
    "unpruned_trials": 2,
    "space": {
        "model.patch_size": [[2, 4, 4], [1, 4, 4]],
        "optimizer.lr": {"low": 1e-4, "high": 0.5, "log": True},
        "data.batch_size": [8, 16],
    },
    "train": {
        "data.dataset": "DummyDataset",
        "data.dataset.sample_shape": [2, 4, 8, 8],
        "data.dataset.num_samples": 40,
        "data.dataset.num_val_samples": 8,
        "model.embed_dim": 16,
        "model.decoder_embed_dim": 16,
        "trainer.accelerator": "cpu",
    },
}


def write_config(folder: Path) -> Path:
    """The tiny study as a file."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def call(monkeypatch: pytest.MonkeyPatch, config: Path, name: str, *words: str) -> int:
    """study.py in this process; the study's folder lies beside the config."""
    folder = f"--output-dir={config.parent}"
    monkeypatch.setattr(sys, "argv", ["study.py", f"-c={config}", f"--name={name}", folder, *words])
    return study.main()


def rows(folder: Path) -> list[dict[str, str]]:
    """table.csv without the one column that is a measurement."""
    with (folder / "table.csv").open(newline="") as file:
        return [
            {k: v for k, v in row.items() if k != "samples_per_second"}
            for row in csv.DictReader(file)
        ]


@functools.cache
def whole_study(folder: Path) -> Path:
    """The folder of a study that nothing has disturbed; it runs once."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert call(monkeypatch, write_config(folder), "whole") == 0
    return folder / "whole"
