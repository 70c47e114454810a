"""Make the tests of this chapter import this chapter's ``src``.

Every chapter has a package ``src``, and ``uv run pytest`` at the root runs all of them in one
process. So while pytest imports or runs anything in this folder, the folder is first on
``sys.path`` (DataLoader workers inherit that), and afterwards its modules leave ``sys.modules``
until it is this chapter's turn again.

PyTorch computes with one thread: for the tests' tiny models that is faster, and on a busy machine
much faster, where threads wait for each other's processors. Dask's workers are not profiled: with
Python 3.11 the profiler stops them for ever once in a while (README.md of chapter 2).
"""

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported; children inherit it
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")  # when dask is
CHAPTER = Path(__file__).resolve().parent
own_modules: dict[str, ModuleType] = {}


def lies_here(module: ModuleType) -> bool:
    """Whether the module is one of this chapter's; an environment inside the folder is not."""
    file = getattr(module, "__file__", None) or ""
    if not file.startswith(f"{CHAPTER}{os.sep}"):  # thousands are asked for each test: no Path here
        return False
    return Path(file).name != "conftest.py" and "site-packages" not in Path(file).parts


@contextmanager
def this_chapter(node: pytest.Collector | pytest.Item) -> Iterator[None]:
    """Import from this chapter inside the ``with`` block, if ``node`` is one of its tests.

    pytest calls the hooks of every conftest for every test, so this has to be asked.
    """
    if CHAPTER not in (node.path, *node.path.parents):
        yield
        return
    sys.path.insert(0, str(CHAPTER))
    sys.modules.update(own_modules)
    try:
        yield
    finally:
        sys.path.remove(str(CHAPTER))
        own_modules.update({name: m for name, m in sys.modules.items() if lies_here(m)})
        for name in own_modules:
            sys.modules.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collecting a file imports it."""
    with this_chapter(collector):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set-up, call and tear-down of one test, fixtures included."""
    with this_chapter(item):
        return (yield)
