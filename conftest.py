"""Run a test once that several chapters hold as the same bytes.

Each chapter has copies of the earlier chapters' tests, and pytest inside a chapter runs all of
them. A run of the whole repository would repeat them. So it leaves a copy out if the original runs
too, and

- all that the copy can reach is byte-identical in both chapters, or
- the copy is slow: what a chapter changes, its own tests and the quick copies cover. ``--copies``
  runs the slow ones as well, and so does the weekly run on GitHub.
"""

import sys
from collections.abc import Generator
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
sys.path.append(str(ROOT / "appendix"))

from reach import reach  # noqa: E402  it is found by the line above


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--copies", action="store_true", help="run slow copies of earlier tests, too")


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
    return all(is_copy(found, old) for found in reach(chapter, [path]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the copies; pytest counts and reports them."""
    names, here = chapters(), {item.nodeid for item in items}

    def is_repeated(item: pytest.Item) -> bool:
        chapter, _, rest = item.nodeid.partition("/")
        if chapter not in names[1:]:
            return False
        old = names[names.index(chapter) - 1]
        if f"{old}/{rest}" not in here or not is_copy(item.path, old):
            return False
        slow = item.get_closest_marker("slow") is not None and not config.getoption("--copies")
        return slow or reaches_the_same(item.path, old)

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
        forkserver._forkserver._stop()  # type: ignore[attr-defined]  # what Python's tests use
    return result
