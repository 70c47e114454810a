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
# What a chapter adds to the one before, leaves behind of it, and changes.
PLAN = yaml.safe_load((ROOT / "appendix" / "chapters.yaml").read_text())


def planned(chapter: str, kind: str) -> set[str]:
    return set(PLAN.get(chapter, {}).get(kind, ()))


def files(chapter: str) -> set[str]:
    """The files of a chapter that git knows, relative to its folder."""
    command = ["git", "ls-files", "-z", chapter]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in listed.split("\0") if (ROOT / name).is_file()]
    return {str(path.relative_to(chapter)) for path in paths}


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


def words(chapter: str) -> int:
    """Words of a chapter's Markdown, tables included, without code, comments and addresses."""
    number = 0
    for name in files(chapter):
        if name.endswith(".md"):
            text = (ROOT / chapter / name).read_text()
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


def main() -> int:
    """Print the table and what is wrong. Returns 1 if something is."""
    wrong = []
    for chapter in CHAPTERS:
        parts = []
        for kind, size, most in zip(
            ("code", "tests", "words"), sizes(chapter), MOST[chapter], strict=True
        ):
            parts.append(f"{kind} {size:5} of {most:4}")
            if size > most:
                wrong.append(f"{chapter}: {size} of {most} {kind}")
        print(f"{chapter:18} {'   '.join(parts)}")
    for chapter in CHAPTERS:
        wrong += too_long(chapter) + (differences(chapter) if chapter != CHAPTERS[0] else [])
    print("\n".join(wrong) or "all chapters: within budget, identical where they have to be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
