"""Which files of its chapter a program or a test can reach: what it imports, names or configures.

A measurement is stale, and a copied test worth another run, only if one of these has changed.
"""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

MODULE = re.compile(r"\b(?:src|tests)(?:\.\w+)+|^\s*class_path: (\w+(?:\.\w+)*)", re.MULTILINE)


def reach(chapter: Path, start: Iterable[Path]) -> set[Path]:
    """The files of ``chapter`` that lead on from ``start``, and ``start`` itself."""
    found: set[Path] = set()
    todo = list(start)
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += named_in(chapter, path)
    return found


def named_in(chapter: Path, path: Path) -> Iterator[Path]:
    """The files of the chapter that a file imports or names."""
    if path.suffix == ".yaml":
        for match in MODULE.finditer(path.read_text()):
            yield from module_files(chapter, match[1] or match[0])
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from module_files(chapter, alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from module_files(chapter, node.module)
                for alias in node.names:
                    yield from module_files(chapter, f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from files_named(chapter, node.value)


def module_files(chapter: Path, name: str) -> Iterator[Path]:
    """The file of a module, or of the module that a class of this name is in."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = chapter.joinpath(*parts[:length])
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                yield candidate
                return


def files_named(chapter: Path, text: str) -> Iterator[Path]:
    """Files that a string is the name of: a script, a job file, a configuration; a module.

    A name that ends with a slash stands for all programs and configurations in a folder.
    """
    if " " in text or len(text) > 100:  # a sentence may mention a file
        return
    if text.startswith("output/"):  # what a run leaves behind is no part of the code
        return
    if text.endswith("/"):
        inside = sorted((chapter / text).rglob("*")) if text.strip("./") else []
        yield from (path for path in inside if path.suffix in (".py", ".yaml"))
    elif text.startswith(("src.", "tests.")):
        yield from module_files(chapter, text)
    elif Path(text).suffix in (".py", ".yaml", ".sbatch"):
        candidates = (chapter / text, chapter / "config" / text)
        yield from (path for path in candidates if path.is_file())


def reached_by_command(chapter: Path, command: str) -> set[Path]:
    """The same for a command such as ``python train.py -c config/a.yaml``, run in the chapter."""
    words = command.split()
    scripts = [word + ".py" for flag, word in itertools.pairwise(words) if flag == "-m"]
    start = [path for word in [*words, *scripts] for path in files_named(chapter, word)]
    return reach(chapter, start)
