"""The root's conftest.py: a copied test runs once, a changed one in each chapter."""

import re
import shutil
import subprocess
import sys

import pytest
from measure import ROOT


@pytest.fixture
def collected(tmp_path):
    """Two chapters with the same code and test; gives a function that says what pytest collects."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    for chapter in ("0_a", "1_b"):
        (tmp_path / chapter / "src").mkdir(parents=True)
        (tmp_path / chapter / "tests").mkdir()
        (tmp_path / chapter / "src" / "code.py").write_text("x = 1\n")
        (tmp_path / chapter / "tests" / "test_x.py").write_text("def test_x(): pass\n")
    (tmp_path / "1_b" / "src" / "more.py").write_text("y = 1\n")

    def collect(*words):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return re.findall(r"^(\d_\w)/.*::test_x$", done.stdout, flags=re.MULTILINE)

    return collect


def test_a_copy_runs_once(collected):
    assert collected() == ["0_a"]
    assert collected("1_b") == ["1_b"]


@pytest.mark.parametrize("file", ["src/code.py", "tests/test_x.py"])
def test_a_changed_one_runs_in_both(collected, tmp_path, file):
    with (tmp_path / "1_b" / file).open("a") as changed:
        changed.write("z = 2\n")
    assert collected() == ["0_a", "1_b"]
