"""The script for a GPU, small and on a processor: its commands exist, and their output is read."""

import sys

import gpu_check
import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "result"),
    [
        ("tests", "2 skipped"),
        ("same_curve", "by hand 0e+00"),
        ("reads", "not measurable on a processor"),
        ("streaming", "samples/s"),
        ("real", "trained two epochs"),
    ],
)
def test_a_part_runs_on_a_processor(monkeypatch, tmp_path, capsys, part, result):
    """The others are commands that chapters test. Broken by: a setting that is gone."""
    monkeypatch.setattr(gpu_check, "OUTPUT", tmp_path / "output")
    store = tmp_path.parent / "store.zarr"  # built once, for all parts
    monkeypatch.setattr(gpu_check, "STORE", store)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--quick", "--parts", part])
    assert gpu_check.main() == 0
    assert result in capsys.readouterr().out
