"""The script for a GPU, small and on a processor: its commands exist, and their output is read."""

import re
import sys

import gpu_check
import pytest

PARTS = {
    "tests": "2 skipped",
    "same curve": "by hand 0e+00",
    "reads": "not measurable on a processor",
    "real": "trained two epochs",
    "streaming": "samples/s",
}


@pytest.mark.slow
def test_each_part_runs_on_a_processor(monkeypatch, tmp_path):
    """The others are commands that chapters test. Broken by: a setting that is gone."""
    monkeypatch.setattr(gpu_check, "OUTPUT", tmp_path / "output")
    monkeypatch.setattr(gpu_check, "STORE", tmp_path / "store.zarr")
    names = [part.replace(" ", "_") for part in PARTS]
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--quick", "--parts", *names])
    assert gpu_check.main() == 0
    table = (tmp_path / "output" / "table.md").read_text()
    results = dict(re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE))
    for part, result in PARTS.items():
        assert result in results[part]
