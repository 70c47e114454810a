"""A script in a fork is as one that was started: its folder, its modules, its end."""

from collections.abc import Iterator

import pytest
from forks import Forks

pytestmark = pytest.mark.slow
SCRIPT = """
import atexit, os, sys
import torch
import own
atexit.register(print, "ended")
print(__name__, own.VALUE, os.getcwd(), *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    found = Forks()
    yield found
    found.close()
    assert found.process.returncode == 0


def test_each_folder_has_its_own_modules(forks, tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "own.py").write_text(f"VALUE = 'of {name}'\n")
        (folder / "script.py").write_text(SCRIPT)
        code, printed = forks.run(folder, ["script.py", "word"])
        assert (code, printed) == (0, f"__main__ of {name} {folder} word\nended\n")


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('error: no')", 1, "error: no\n"),
        ("raise ValueError('bad')", 1, "ValueError: bad\n"),
        ("os.kill(os.getpid(), 9)", -9, ""),
        ("assert not sys.stdin.read()", 0, ""),
    ],
)
def test_ends(forks, tmp_path, end, code, said):
    (tmp_path / "script.py").write_text(f"import os, sys\n{end}\n")
    found, printed = forks.run(tmp_path, ["script.py"])
    assert found == code
    assert printed.endswith(said)
    assert bool(printed) == bool(said)
