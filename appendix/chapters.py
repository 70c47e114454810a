"""Sizes of the chapters against their budget, and whether they differ only where they may.

  uv run python appendix/chapters.py   print the table; exit code 1 if something is over or differs

A line counts if it is neither blank nor only a comment; docstrings and code cells of notebooks
count. A chapter's new lines are those of its new files, and those that it adds to older ones. Words
are those of its Markdown without code blocks and HTML comments.
"""

import ast
import difflib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = ["0_setup", "1_multi_gpu", "2_cloud_data", "3_data_pipeline", "4_model_profiling"]
CHAPTERS += ["5_whats_next"]
MOST = {  # lines of code, lines of tests, words
    "0_setup": (1150, 400, 2000),
    "1_multi_gpu": (550, 280, 2200),
    "2_cloud_data": (850, 350, 2300),
    "3_data_pipeline": (700, 300, 2500),
    "4_model_profiling": (650, 220, 2100),
    "5_whats_next": (1150, 450, 2500),
}
LAST = {"lines": 3300, "files": 50, "imported lines": 2500, "imported files": 35}
APPENDIX = {"tools": 600, "tests of tools": 200, "words": 4000, "words at the root": 1000}
# What a chapter adds to the one before, leaves behind of it, and changes.
PLAN = yaml.safe_load((ROOT / "appendix" / "chapters.yaml").read_text())


def planned(chapter: str, kind: str) -> set[str]:
    return set(PLAN.get(chapter, {}).get(kind, ()))


def tracked(*names: str) -> list[Path]:
    """The files that git knows under these names."""
    command = ["git", "ls-files", "-z", *names]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if (ROOT / name).is_file()]


def files(chapter: str) -> set[str]:
    """The files of a chapter, relative to its folder."""
    return {str(path.relative_to(ROOT / chapter)) for path in tracked(chapter)}


def differences(chapter: str) -> list[str]:
    """Where a chapter differs from the one before, and may not."""
    before = CHAPTERS[CHAPTERS.index(chapter) - 1]
    old, new = (
        {name for name in files(c) if not name.startswith(("README.md", "results/", "tests/"))}
        for c in (before, chapter)
    )
    added, left = planned(chapter, "adds"), planned(chapter, "leaves")
    found = [f"{chapter}/{name} is missing" for name in sorted((old - left | added) - new)]
    found += [f"{chapter}/{name} is not listed" for name in sorted(new - (old - left) - added)]
    for name in sorted((old & new) - planned(chapter, "changes")):
        if (ROOT / before / name).read_bytes() != (ROOT / chapter / name).read_bytes():
            found.append(f"{chapter}/{name} differs from {before}/{name}")
    return found


def code_lines(path: Path) -> list[str]:
    """The lines of a Python file or a notebook that count."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    lines = (line.rstrip() for line in text.splitlines())
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def new_lines(chapter: str, name: str) -> int:
    """The lines that a file has and the nearest earlier chapter with this file has not."""
    here, index = ROOT / chapter / name, CHAPTERS.index(chapter)
    for earlier in reversed(CHAPTERS[:index]):
        before = ROOT / earlier / name
        if not before.is_file():
            continue
        # A test's helper is counted once. A file that comes back after a gap counts as new.
        if name.startswith("tests/") and before.read_bytes() == here.read_bytes():
            return 0
        if earlier == CHAPTERS[index - 1]:
            old, new = code_lines(before), code_lines(here)
            blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
            return len(new) - sum(block.size for block in blocks)
    return len(code_lines(here))


def words(*names: str) -> int:
    """Words of Markdown files, tables included, without code, comments and addresses."""
    number = 0
    for path in tracked(*names):
        if path.suffix == ".md":
            text = path.read_text()
            text = re.sub(r"```.*?```|<!--.*?-->|\]\([^)]*\)", " ", text, flags=re.DOTALL)
            number += sum(bool(re.search(r"\w", word)) for word in text.split())
    return number


def too_long(chapter: str) -> list[str]:
    """Files and functions of a chapter that are longer than a reader likes."""
    found = []
    for name in sorted(files(chapter)):
        path = ROOT / chapter / name
        if path.suffix != ".py" or name.startswith("tests/"):
            continue
        is_script = name.endswith(("_train.py", "_trainer.py")) and "/" not in name
        if len(code_lines(path)) > (150 if is_script else 200):
            found.append(f"{chapter}/{name} has {len(code_lines(path))} lines")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                size = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
                if size > (55 if node.name in ("train", "fit", "main") else 40):
                    found.append(f"{chapter}/{name}: {node.name} has {size} lines")
    return found


def sizes(chapter: str) -> tuple[int, int, int]:
    """New lines of code, new lines of tests, words."""
    code = [name for name in files(chapter) if name.endswith((".py", ".ipynb"))]
    tests = {name for name in code if name.startswith("tests/")}
    return (
        sum(new_lines(chapter, name) for name in set(code) - tests),
        sum(new_lines(chapter, name) for name in tests),
        words(chapter),
    )


def imported(chapter: str, script: str) -> set[Path]:
    """The chapter's files that a script imports, or that its default configuration names."""
    text = (ROOT / chapter / "config" / "config.yaml").read_text()
    text += (ROOT / chapter / "config" / "cli_config.yaml").read_text()
    named = [name.rpartition(".")[0] for name in re.findall(r"class_path: (src[\w.]*)", text)]
    seen: set[Path] = set()
    todo = [script.removesuffix(".py"), *named]
    while todo:
        path = ROOT / chapter / f"{todo.pop().replace('.', '/')}.py"
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
    return seen


def whole_sizes() -> tuple[list[int], list[int]]:
    """The figures of LAST and of APPENDIX."""

    def lines(paths: Iterable[Path]) -> int:
        return sum(len(code_lines(path)) for path in paths)

    python = [path for path in tracked(CHAPTERS[-1]) if path.suffix in (".py", ".ipynb")]
    last = [path for path in python if "tests" not in path.parts]
    reached = imported(CHAPTERS[-1], "lightning_train.py")
    tools = [path for path in tracked("*.py", "appendix/*.py") if path.parent.name != "peers"]
    tools = [path for path in tools if path.relative_to(ROOT).parts[0] not in CHAPTERS]
    tests = [path for path in tools if "tests" in path.parts]
    counts = [lines(set(tools) - set(tests)), lines(tests), words("appendix")]
    counts.append(words("README.md", "CONTRIBUTING.md"))
    return [lines(last), len(last), lines(reached), len(reached)], counts


def report(name: str, values: Iterable[int], most: dict[str, int]) -> list[str]:
    """Print a line; returns what is over the budget."""
    pairs = list(zip(values, most.items(), strict=True))
    print(
        f"{name:18} "
        + "   ".join(f"{kind} {value:5} of {limit:4}" for value, (kind, limit) in pairs)
    )
    return [f"{name}: {value} of {limit} {kind}" for value, (kind, limit) in pairs if value > limit]


def main() -> int:
    """Print the table and what is wrong. Returns 1 if something is."""
    wrong = []
    for chapter in CHAPTERS:
        limits = dict(zip(("code", "tests", "words"), MOST[chapter], strict=True))
        wrong += report(chapter, sizes(chapter), limits)
    last, appendix = whole_sizes()
    wrong += report("the last chapter", last, LAST) + report("the rest", appendix, APPENDIX)
    for chapter in CHAPTERS:
        wrong += too_long(chapter) + (differences(chapter) if chapter != CHAPTERS[0] else [])
    print("\n".join(wrong) or "all chapters: within budget, identical where they have to be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
