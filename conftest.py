"""Run a test once that several chapters hold as the same bytes.

Each chapter has copies of the earlier chapters' tests, and pytest inside a chapter runs all of
them. A run of the whole repository would repeat them. So it leaves a copy out if the original runs
too, and

- all that the copy can reach is byte-identical in the chapter before, or
- a later chapter has it as well, and reaches something else: the first and the last version run, or
- the copy is slow: what a chapter changes, its own tests and the quick copies cover. Of tests that
  are marked ``slow(copies=True)`` the last version runs all the same.

``--copies`` runs all but the first kind, and so does the weekly run on GitHub; ``-m "not slow"``
leaves out all copies.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
NAMED: dict[Path, list[Path]] = {}  # what each file leads to; nothing changes during collection
sys.path.append(str(ROOT / "appendix"))

from reach import reach  # noqa: E402  it is found by the line above

# What a shell starts in the background ignores Ctrl-C, and so do all its children: tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Several processes run tests on what may be two cores; tests compare runs with the same threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Fewer looks for garbage: here, and in what the tests start (see .ci/python/sitecustomize.py).
gc.set_threshold(10_000)
PLACES = [str(ROOT / ".ci" / "python"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, PLACES)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--copies", action="store_true", help="run all copies of earlier tests")


def chapters() -> list[str]:
    return sorted(path.name for path in ROOT.glob("[0-9]_*") if path.is_dir())


def twin(path: Path, chapter: str) -> Path:
    """The file of the same name in another chapter."""
    return ROOT / chapter / Path(*path.relative_to(ROOT).parts[1:])


@cache
def is_copy(path: Path, chapter: str) -> bool:
    other = twin(path, chapter)
    return other.is_file() and other.read_bytes() == path.read_bytes()


@cache
def reaches_the_same(path: Path, old: str) -> bool:
    """Whether all files that a test can reach are the same in chapter ``old``."""
    chapter = ROOT / path.relative_to(ROOT).parts[0]
    return all(is_copy(found, old) for found in reach(chapter, [path], NAMED))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the copies; pytest counts and reports them."""
    names, here = chapters(), {item.nodeid for item in items}

    def has_copy(path: Path, rest: str, number: int) -> bool:
        """Whether chapter ``number`` holds the test that the one before it runs."""
        old = names[number - 1]
        return f"{old}/{rest}" in here and is_copy(twin(path, names[number]), old)

    def is_repeated(item: pytest.Item) -> bool:
        chapter, _, rest = item.nodeid.partition("/")
        number = names.index(chapter) if chapter in names else 0
        if number == 0 or not has_copy(item.path, rest, number):
            return False
        if reaches_the_same(item.path, names[number - 1]):
            return True
        if config.getoption("--copies"):
            return False
        mark = item.get_closest_marker("slow")
        if config.getoption("markexpr") == "not slow" or (mark and "copies" not in mark.kwargs):
            return True
        for later in range(number + 1, len(names)):
            if f"{names[later]}/{rest}" not in here or not has_copy(item.path, rest, later):
                break
            if not reaches_the_same(twin(item.path, names[later]), names[later - 1]):
                return True
        return False

    repeated = {item for item in items if is_repeated(item)}
    config.hook.pytest_deselected(items=list(repeated))
    items[:] = [item for item in items if item not in repeated]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Stop the forkserver after a chapter's last test: it has imported that chapter's ``src``."""
    result = yield
    if nextitem is None or item.nodeid.partition("/")[0] != nextitem.nodeid.partition("/")[0]:
        server = forkserver._forkserver  # type: ignore[attr-defined]  # as Python's own tests do
        if server._forkserver_pid:
            # Only asked to stop, one has gone on for ever, and _stop() waits without a limit.
            os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
    return result
