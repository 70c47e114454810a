"""Measures of code that do not change when a line is packed or a comment is added."""

import ast
import functools
import io
import json
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

FILE_LINES = 200
FUNCTION_LINES = 40  # 60 for train, fit and main

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def is_code(path: Path) -> bool:
    return path.suffix in (".py", ".ipynb")


def is_test(path: Path) -> bool:
    return "tests" in path.parts or path.name == "conftest.py"


@functools.cache
def source(path: Path) -> str:
    """The code of a Python file, or of a notebook's cells."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        text = re.sub(r"^[%!].*$", "", "\n".join(code), flags=re.MULTILINE)
    return text


def docstring_lines(path: Path) -> set[int]:
    """The numbers of the lines that belong to docstrings."""
    numbers: set[int] = set()
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node):
            first = node.body[0]
            numbers |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    return numbers


@functools.cache
def code_lines(path: Path) -> dict[int, int]:
    """The numbers of the lines with code, and how many tokens each has."""
    ignored = docstring_lines(path)
    count: dict[int, int] = {}
    depth = 0  # since Python 3.12 an f-string is many tokens; here it is one everywhere
    for token in tokenize.generate_tokens(io.StringIO(source(path)).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_END":
            depth -= 1
            continue
        line = token.start[0]
        if depth == 0 and token.type not in LAYOUT and line not in ignored:
            count[line] = count.get(line, 0) + 1
        if kind == "FSTRING_START":
            depth += 1
    return count


def texts(path: Path) -> list[str]:
    """The lines with code, without their indentation."""
    lines = source(path).splitlines()
    return [lines[number - 1].strip() for number in code_lines(path)]


def tokens(paths: Iterable[Path]) -> int:
    return sum(sum(code_lines(path).values()) for path in paths)


def comments_in_place_of_docstrings(path: Path) -> list[str]:
    """The definitions that have a comment above them, and no docstring."""
    text = source(path).splitlines()
    found = []
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, Definition) and not ast.get_docstring(node):
            first = min(n.lineno for n in (node, *node.decorator_list))
            if first > 1 and text[first - 2].lstrip().startswith("#"):
                found.append(f"line {node.lineno}, {node.name}")
    return found


def tuple_assignments(path: Path) -> int:
    """How often a file has ``a, b = c, d``."""
    number = 0
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            number += isinstance(target, ast.Tuple) and isinstance(
                node.value, ast.Tuple
            )
    return number


def too_long(path: Path) -> list[str]:
    """Where a file or a function is longer than a reader likes."""
    text = source(path).splitlines()
    ignored = docstring_lines(path)
    counted = []
    for number, line in enumerate(text, 1):
        if line.strip() and not line.lstrip().startswith("#") and number not in ignored:
            counted.append(number)
    found = []
    if len(counted) > FILE_LINES:
        found.append(f"has {len(counted)} lines, of {FILE_LINES}")
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            size = sum(number in body for number in counted)
            most = FUNCTION_LINES + 20 * (node.name in ("train", "fit", "main"))
            if size > most:
                found.append(f"{node.name} has {size} lines, of {most}")
    return found
