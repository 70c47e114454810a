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
LONG_PARTS = {
    "precisions": "bf16-mixed",
    "model flops": "not deterministic",
    "ladder": "torch.compile",
}


def results(monkeypatch, folder, parts: list[str]) -> dict[str, str]:
    """What the table says of these parts."""
    monkeypatch.setattr(gpu_check, "OUTPUT", folder / "output")
    monkeypatch.setattr(gpu_check, "STORE", folder / "store.zarr")
    names = [part.replace(" ", "_") for part in parts]
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--quick", "--parts", *names])
    code = gpu_check.main()
    table = (folder / "output" / "table.md").read_text()
    assert code == ("FAILED" in table)
    return dict(re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("parts", [PARTS, LONG_PARTS])
def test_each_part_runs_on_a_processor(monkeypatch, tmp_path, parts):
    """Broken by: a setting that is gone."""
    found = results(monkeypatch, tmp_path, list(parts))
    for part, result in parts.items():
        assert result in found[part]


@pytest.mark.slow
def test_a_read_in_the_trace_is_found(monkeypatch, tmp_path):
    """A matrix product in its place. Broken by: other steps than those of the profiler."""
    monkeypatch.setattr(gpu_check, "READS", "aten::addmm")
    found = results(monkeypatch, tmp_path, ["reads"])
    assert "FAILED: RuntimeError" in found["reads"]
