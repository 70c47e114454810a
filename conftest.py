"""Run a test once that several chapters hold as the same bytes.

Each chapter has copies of the earlier chapters' tests, and pytest inside a chapter runs all of
them. A run of the whole repository would repeat them. So it leaves a copy out if the original runs
too, and all that the original can import is byte-identical in both chapters.
"""

from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
CODE = ("*.py", "src/**/*.py", "config/*.yaml", "tests/*.py")


def chapters() -> list[str]:
    return sorted(path.name for path in ROOT.glob("[0-9]_*") if path.is_dir())


@cache
def same_code(old: str, new: str) -> bool:
    """Whether chapter ``new`` has every code file of ``old``, unchanged; tests may be missing."""
    ours = (path for pattern in CODE for path in (ROOT / old).glob(pattern))
    return all(
        is_copy(path, new) or (path.name.startswith("test_") and not twin(path, new).exists())
        for path in ours
    )


def twin(path: Path, chapter: str) -> Path:
    """The file of the same name in another chapter."""
    return ROOT / chapter / Path(*path.relative_to(ROOT).parts[1:])


def is_copy(path: Path, chapter: str) -> bool:
    other = twin(path, chapter)
    return other.is_file() and other.read_bytes() == path.read_bytes()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the copies; pytest counts and reports them."""
    names, here = chapters(), {item.nodeid for item in items}

    def is_repeated(item: pytest.Item) -> bool:
        chapter, _, rest = item.nodeid.partition("/")
        if chapter not in names[1:]:
            return False
        old = names[names.index(chapter) - 1]
        return f"{old}/{rest}" in here and same_code(old, chapter) and is_copy(item.path, old)

    repeated = [item for item in items if is_repeated(item)]
    config.hook.pytest_deselected(items=repeated)
    items[:] = [item for item in items if item not in set(repeated)]
