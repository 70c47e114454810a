"""Sizes of the chapters, how dense their code is, and whether they differ only where they may.

  uv run python appendix/chapters.py   print the table; exit code 1 if a finished part is over

chapters.yaml has the limits. Sizes count tokens of code: names, numbers, operators, strings.
Docstrings, comments, blank lines and line breaks are free, so nothing is gained by packing a line.
A chapter's new tokens are those of its new files, and of the lines that it adds to older files.
"""

import ast
import difflib
import functools
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PLAN = yaml.safe_load((ROOT / "appendix" / "chapters.yaml").read_text())
CHAPTERS = [part for part in PLAN["limits"] if part != "appendix"]
FILE_LINES = 200
FUNCTION_LINES = 40  # 60 for train, fit and main


def tracked(*names: str) -> list[Path]:
    """The files that git knows under these names."""
    command = ["git", "ls-files", *names]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    return [path for path in map(ROOT.joinpath, listed) if path.is_file()]


def is_test(path: Path) -> bool:
    """Whether the file counts as a test."""
    return "tests" in path.parts or path.name == "conftest.py"


def before(path: Path) -> Path | None:
    """The same file of the chapter before, or of the nearest one that has it."""
    chapter, *names = path.relative_to(ROOT).parts
    for earlier in reversed(CHAPTERS):
        old = ROOT.joinpath(earlier, *names)
        if earlier < chapter and old.is_file():
            return old
    return None


@functools.cache
def nodes(path: Path) -> list[Any]:
    """The nodes of the file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def code_lines(path: Path) -> dict[int, int]:
    """The numbers of the lines with code, and how many tokens each has."""
    ignored: set[int] = set()
    for node in nodes(path):
        # Only a docstring is a statement of its own.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            ignored.update(range(node.lineno, (node.end_lineno or 0) + 1))
    count: dict[int, int] = {}
    depth = 0  # since Python 3.12 an f-string is many tokens; here it is one everywhere
    with path.open() as file:
        for token in tokenize.generate_tokens(file.readline):
            kind = tokenize.tok_name[token.type]
            is_code = depth == 0 and kind != "COMMENT" and token.string.strip()
            depth += (kind == "FSTRING_START") - (kind == "FSTRING_END")
            line = token.start[0]
            if is_code and line not in ignored:
                count[line] = count.get(line, 0) + 1
    return count


def compare(path: Path) -> tuple[int, int, int]:
    """New tokens; lines, not blank, that differ from the chapter before; how many it removes."""
    code = code_lines(path)
    old = before(path)
    if not old:
        return sum(code.values()), 0, 0
    a, b = ([line.strip() for line in p.read_text().splitlines()] for p in (old, path))
    new = changed = removed = 0
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for kind, *gone, first, last in matcher.get_opcodes():
        if kind != "equal":
            removed += sum(map(bool, a[slice(*gone)]))
            changed += sum(map(bool, b[first:last]))
            new += sum(code.get(number + 1, 0) for number in range(first, last))
    return new, changed + removed, removed


def faults(path: Path) -> Iterator[str]:
    """Where a file or a function is too long, or has a comment in place of a docstring."""
    text = path.read_text().splitlines()
    lines = code_lines(path)
    if len(lines) > FILE_LINES:
        yield f"{path}: {len(lines)} lines of {FILE_LINES}"
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min(each.lineno for each in (node, *node.decorator_list))
            above = text[first - 2].lstrip()
            if above.startswith("#") and not ast.get_docstring(node):
                yield f"{path}: {node.name} has a comment in place of a docstring"
            body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            size = sum(number in body for number in lines)
            most = FUNCTION_LINES + 20 * (node.name in ("train", "fit", "main"))
            if size > most and not isinstance(node, ast.ClassDef):
                yield f"{path}: {node.name} has {size} lines of {most}"


def differences(chapter: str) -> Iterator[str]:
    """The files that differ from those of the chapter before, and may not."""
    allowed = ("README.md", "results/", "tests/", *PLAN["changes"].get(chapter, ()))
    for path in tracked(chapter):
        old = before(path)
        if not old or str(path.relative_to(ROOT / chapter)).startswith(allowed):
            continue
        if old.read_bytes() != path.read_bytes():
            yield f"{path} differs from the chapter before"


def measure(part: str) -> tuple[dict[str, float], list[str]]:
    """The figures that chapters.yaml limits, and what is wrong besides."""
    is_chapter = part in CHAPTERS
    paths = tracked(f"{part}/*.py") if is_chapter else tracked("*.py", ":![0-9]_*")
    code = [path for path in paths if not is_test(path)]
    new, changed, removed = map(sum, zip(*map(compare, code), strict=True))
    fresh = [path for path in code if compare(path)[0]]
    lines = [count for path in fresh for count in code_lines(path).values()]
    tuples = 0
    for node in chain.from_iterable(map(nodes, fresh)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            tuples += isinstance(node.targets[0], ast.Tuple)
    figures = {
        "code": new,
        "tests": sum(compare(path)[0] for path in paths if is_test(path)),
        "changed": changed,
        "removed": removed,
        "density": sum(lines) / len(lines),
        "tuples": 1000 * tuples / sum(lines),
        "whole": sum(sum(code_lines(path).values()) for path in code),
        "files": len(code),
    }
    return figures, [*chain.from_iterable(map(faults, code)), *differences(part)]


def main() -> int:
    """Print the table and what is wrong. Returns 1 if something is."""
    wrong = []
    for part, limits in PLAN["limits"].items():
        figures, found = measure(part)
        cells = [f"{name} {round(figure, 2):6,}" for name, figure in figures.items()]
        print(f"{part:18}", *cells, sep="  ")
        for name, most in limits.items():
            if figures[name] > most:
                found.append(f"{part}: {name} {round(figures[name], 2):,} of {most:,}")
        if part in PLAN["finished"]:
            wrong += found
    print("\n".join(wrong).replace(f"{ROOT}/", "") or "within the limits")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
