"""The script for GPUs, small and on a processor: its commands exist, and their output is read."""

import sys

import gpu_check
import pytest

TEXTS = (
    "bf16-mixed",
    "FAILED: FileNotFoundError",
    "needs two GPUs",
)


@pytest.mark.slow
def test_its_parts_run_on_a_processor(monkeypatch, tmp_path, capsys):
    """And one that fails says so. Broken by: a setting or a word of an output that is gone."""
    monkeypatch.setattr(gpu_check, "OUTPUT", tmp_path / "output")
    for part in ("tests", "devices"):  # other tests show what they run
        monkeypatch.delitem(gpu_check.PARTS, part)
    monkeypatch.setattr(
        gpu_check.GpuCheck, "large_model", lambda check: check.run("nowhere")
    )
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--quick"])
    assert gpu_check.main() == 1
    parts = capsys.readouterr().out.split("\n**")[1:]
    for part, text in zip(parts, TEXTS, strict=True):
        assert text in part
