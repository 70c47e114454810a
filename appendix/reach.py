"""Which files of its chapter a program or a test can reach: what it imports, names or configures.

A measurement is stale, and a copied test worth another run, only if one of these has changed.
"""

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

MODULE = re.compile(r"\b(?:src|tests)(?:\.\w+)+|^\s*class_path: (\w+(?:\.\w+)*)", re.MULTILINE)


def reach(
    chapter: Path, start: Iterable[Path], known: dict[Path, list[Path]] | None = None
) -> set[Path]:
    """The files of ``chapter`` that lead on from ``start``, and ``start`` itself.

    ``known`` is what earlier calls have found of each file, for the next one.
    """
    known = {} if known is None else known
    found: set[Path] = set()
    todo = list(start)
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            if path not in known:
                known[path] = list(named_in(chapter, path))
            todo += known[path]
    return found


def named_in(chapter: Path, path: Path) -> Iterator[Path]:
    """The files of the chapter that a file imports or names."""
    if path.suffix in (".yaml", ".py"):
        modules, words = mentioned(path.suffix, path.read_text())
        for name in modules:
            yield from module_files(chapter, name)
        for word in words:
            yield from files_named(chapter, word)


@functools.cache  # chapters hold the same file, and most files are reached from many others
def mentioned(suffix: str, text: str) -> tuple[set[str], set[str]]:
    """The modules that a text names, and in code the strings, which may be names of files."""
    if suffix == ".yaml":
        return {match[1] or match[0] for match in MODULE.finditer(text)}, set()
    modules, words = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
    return modules, words


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
