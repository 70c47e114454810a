"""The figures that the README quotes: within the limits, and what the code gives today."""

import json
import subprocess
import sys

import pytest
import yaml
from src.config import CHAPTER

from tests.runs import SCRIPT


def record(name: str) -> dict:
    """A measurement that the README quotes."""
    return json.loads((CHAPTER / "results" / f"{name}.json").read_text())


def test_limits():
    """A minute, 1.5 GB, 15 s before training; better than all baselines; more training pays."""
    default, longer = record("default"), record("longer")
    assert default["seconds"] < 60
    assert default["seconds_to_first_row"] < 15
    assert max(default["peak_memory_mb"], longer["peak_memory_mb"]) < 1500
    rmse = longer["summary"]["validation"]["masked autoencoder"]["rmse_surface_temperature"]
    assert rmse < 0.45


@pytest.mark.slow
def test_default_run(tmp_path, monkeypatch):
    """The command of the README: the scores that the text states, beside the three baselines."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    command = [sys.executable, str(SCRIPT), f"--trainer.output_dir={tmp_path}"]
    # Started from a folder that is not the chapter's, without a network and without an account.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    folder = tmp_path / "run_1"
    summary = json.loads((folder / "summary.json").read_text())["validation"]
    rmse = {name: score["rmse_surface_temperature"] for name, score in summary.items()}
    ours = rmse.pop("masked autoencoder")
    assert set(rmse) == {"inverse distance", "climatology", "visible mean"}
    assert ours < 0.60
    assert ours < min(rmse.values())
    stated = json.loads((CHAPTER / "results/default.json").read_text())["summary"]["validation"]
    assert ours == pytest.approx(stated["masked autoencoder"]["rmse_surface_temperature"], abs=0.03)
    for name, value in rmse.items():
        assert value == pytest.approx(stated[name]["rmse_surface_temperature"], abs=0.002)
        assert f"{name:<20}{value:8.3f}" in done.stdout
    for name in ("reconstructions.png", "curves.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert list((folder / "wandb").glob("offline-run-*/*.wandb"))
    resolved = yaml.safe_load((folder / "config.yaml").read_text())
    assert resolved["model"]["mask_ratio"] == 0.75
    assert "time left" in done.stderr or "step/s" in done.stderr
