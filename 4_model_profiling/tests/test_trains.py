"""The train script trains: the one test of a chapter that waits for its second edition."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHAPTER = Path(__file__).parents[1]


@pytest.mark.slow
def test_trains(tmp_path):
    settings = ["--trainer.max_steps=3", "--trainer.log_every_n_steps=1", "--trainer.max_epochs=1"]
    command = [sys.executable, "lightning_train.py", *settings, f"--trainer.output_dir={tmp_path}"]
    subprocess.run(command, cwd=CHAPTER, env=os.environ | {"WANDB_MODE": "disabled"}, check=True)
    (table,) = tmp_path.rglob("metrics.csv")
    with table.open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3"]
