"""Two chapters with the same package name in one pytest process: each test sees its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TEST = """
import pytest
import src.value
from torch.utils.data import DataLoader
from src.value import Numbers

def test_value():
    assert src.value.CHAPTER == "{name}"

def test_late_import():
    from src import other
    assert other.CHAPTER == "{name}"

@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_in_workers(start):
    loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=start, collate_fn=list)
    assert list(loader) == [["{name}"]]
"""

VALUE = """
CHAPTER = "{name}"

class Numbers:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        from src import other  # imported in the worker
        return other.CHAPTER
"""


@pytest.fixture
def two_chapters(tmp_path) -> Path:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'
    )
    for name in ("a", "b"):
        chapter = tmp_path / name
        (chapter / "src").mkdir(parents=True)
        (chapter / "tests").mkdir()
        shutil.copy(ROOT / "0_setup" / "conftest.py", chapter)
        (chapter / "src" / "__init__.py").touch()
        (chapter / "tests" / "__init__.py").touch()
        (chapter / "src" / "value.py").write_text(VALUE.format(name=name))
        (chapter / "src" / "other.py").write_text(f'CHAPTER = "{name}"\n')
        (chapter / "tests" / "test_value.py").write_text(TEST.format(name=name))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "arguments", "passed"),
    [(".", [], 10), ("b", [], 5), (".", ["b/tests/test_value.py"], 5), ("a", ["tests"], 5)],
)
def test_each_chapter_imports_its_own(two_chapters, folder, arguments, passed):
    """At the root, in a chapter, and on one file."""
    if folder != "." or arguments:
        arguments = [*arguments, "-k", "not in_workers"]  # starting processes takes seconds
        passed = 2
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=two_chapters / folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # some import a lot
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr
    assert "failed" not in done.stdout
