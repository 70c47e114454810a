"""Each chapter has packages ``src`` and ``tests``: a test imports those of its own chapter."""

import os
import random
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

# Tiny models are faster with one thread. Read when torch is imported, here and in subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# One S3 server for all tests, with a folder that goes with this process.
if "S3_FOLDER" not in os.environ:
    FOLDER = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ["S3_FOLDER"] = FOLDER.name
# Tests kill at random moments: the same seed kills at the same ones again.
SEED = os.environ.setdefault("TEST_SEED", str(random.randrange(10**6)))
ROOT = Path(__file__).parent
MODULES: dict[str, dict] = {}  # what each chapter has imported


def pytest_report_header() -> str:
    return f"random choices: TEST_SEED={SEED}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(f"{SEED} {item.nodeid}")


def inside_chapter(path: Path) -> Generator:
    """Have the chapter first on sys.path, and its modules in sys.modules, for this step."""
    parts = path.relative_to(ROOT).parts
    folder = parts[0] if parts else "appendix"  # pytest collects the root itself, too
    chapter = str(ROOT / folder)
    sys.path.insert(0, chapter)
    sys.modules.update(MODULES.setdefault(chapter, {}))
    try:
        return (yield)
    finally:
        sys.path.remove(chapter)
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(chapter + os.sep):
                MODULES[chapter][name] = sys.modules.pop(name)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator:
    return (yield from inside_chapter(collector.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator:
    return (yield from inside_chapter(item.path))
