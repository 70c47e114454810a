"""The root's conftest.py: a copied test runs once, a changed one in each chapter."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from measure import ROOT

# pytest only collects it here, so the import inside it is not run.
TEST = """
import pytest

def test_x():
    import src.code

@pytest.mark.slow
def test_slow():
    import src.code

@pytest.mark.slow(copies=True)
def test_long():
    import src.code
"""


@pytest.fixture
def collected(tmp_path):
    """Two chapters with the same code and test; gives a function that says what pytest collects."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "appendix").mkdir()
    shutil.copy(ROOT / "appendix" / "reach.py", tmp_path / "appendix")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers = slow\n"
    )
    for chapter in ("0_a", "1_b"):
        (tmp_path / chapter / "src").mkdir(parents=True)
        (tmp_path / chapter / "tests").mkdir()
        (tmp_path / chapter / "src" / "code.py").write_text("import src.more\n")
        (tmp_path / chapter / "src" / "more.py").write_text("x = 1\n")
        (tmp_path / chapter / "src" / "other.py").write_text("x = 1\n")
        (tmp_path / chapter / "tests" / "test_x.py").write_text(TEST)
    (tmp_path / "1_b" / "src" / "new.py").write_text("y = 1\n")

    def collect(*words):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *words]
        env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # some import a lot
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        return re.findall(r"^(\d_\w/\S*::test_\w+)$", done.stdout, flags=re.MULTILINE)

    return collect


X, SLOW, LONG = (f"tests/test_x.py::test_{name}" for name in ("x", "slow", "long"))


def of(chapter: str, *names: str) -> list[str]:
    """Of a chapter; all if none is named."""
    return [f"{chapter}/{name}" for name in names or (X, SLOW, LONG)]


ORIGINALS = of("0_a")


@pytest.mark.slow
def test_a_copy_runs_once(collected):
    assert collected() == collected("--copies") == ORIGINALS
    assert collected("1_b") == of("1_b")


@pytest.mark.parametrize("file", ["src/code.py", "src/more.py"])
def test_where_it_reaches_a_change_it_runs_again(collected, tmp_path, file):
    """A slow one only if asked to."""
    with (tmp_path / "1_b" / file).open("a") as changed:
        changed.write("z = 2\n")
    assert collected() == [*ORIGINALS, *of("1_b", X, LONG)]
    assert collected("--copies") == [*ORIGINALS, *of("1_b")]
    assert collected("-m", "not slow") == of("0_a", X)
    assert collected("-m", "not slow", "1_b") == of("1_b", X)


def test_a_changed_test_runs_in_both(collected, tmp_path):
    with (tmp_path / "1_b" / "tests" / "test_x.py").open("a") as changed:
        changed.write("z = 2\n")
    assert collected() == [*ORIGINALS, *of("1_b")]


def test_a_change_out_of_reach_does_not_count(collected, tmp_path):
    (tmp_path / "1_b" / "src" / "other.py").write_text("x = 2\n")
    assert collected() == ORIGINALS


@pytest.mark.slow
def test_the_first_and_the_last_version_run(collected, tmp_path):
    """Of a chapter between them only if asked to."""
    shutil.copytree(tmp_path / "1_b", tmp_path / "2_c")
    shutil.copytree(tmp_path / "1_b", tmp_path / "3_d")
    for chapter, change in {"1_b": "z = 2\n", "2_c": "z = 3\n", "3_d": "z = 3\n"}.items():
        with (tmp_path / chapter / "src" / "code.py").open("a") as changed:
            changed.write(change)
    assert collected() == [*ORIGINALS, *of("2_c", X, LONG)]
    assert collected("--copies") == [*ORIGINALS, *of("1_b"), *of("2_c")]
    assert collected("0_a", "1_b") == [*ORIGINALS, *of("1_b", X, LONG)]


@pytest.mark.slow
def test_a_named_folder_is_reached(collected, tmp_path):
    for chapter in ("0_a", "1_b"):
        with (tmp_path / chapter / "tests" / "test_x.py").open("a") as test:
            test.write('FOLDER = "exercises/"\n')
        (tmp_path / chapter / "exercises").mkdir()
        (tmp_path / chapter / "exercises" / "one.py").write_text("x = 1\n")
    assert collected() == ORIGINALS
    (tmp_path / "1_b" / "exercises" / "one.py").write_text("x = 2\n")
    assert collected() == [*ORIGINALS, *of("1_b", X, LONG)]
