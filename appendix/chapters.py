"""Sizes of the chapters, how dense their code is, and whether they differ only where they may.

  uv run python appendix/chapters.py   print the table; exit code 1 if something is over or differs

Sizes count tokens of code: names, numbers, operators, strings. Docstrings, comments, blank lines
and line breaks are free, so nothing is gained by packing a line. A chapter's new tokens are those
of its new files, and of the lines that it adds to older files. Words are those of its Markdown,
without code blocks and HTML comments.
"""

import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path

import yaml
from measures import (
    code_lines,
    comments_in_place_of_docstrings,
    is_code,
    is_test,
    texts,
    tokens,
    too_long,
    tuple_assignments,
)

ROOT = Path(__file__).resolve().parents[1]
# Sizes today, rounded up: a chapter that passes them has to drop something.
# Tokens of code, tokens of tests, words.
LIMITS = {
    "0_setup": (11_750, 5_550, 2_400),
    "1_multi_gpu": (6_700, 4_650, 2_600),
    "2_cloud_data": (11_750, 9_950, 2_800),
    "3_data_pipeline": (8_850, 6_150, 3_050),
    "4_model_profiling": (6_550, 3_050, 2_600),
    "5_whats_next": (14_000, 15_550, 3_600),
}
CHAPTERS = list(LIMITS)
WHOLE = {
    "tokens of the last chapter": 42_400,
    "its files": 60,
    "tokens that its training imports": 33_600,
    "files that its training imports": 46,
    "tokens of tools": 10_400,
    "tokens of the tools' tests": 6_500,
    "words of the appendix": 4_000,
    "words at the root": 1_200,  # README.md and CONTRIBUTING.md
}
# About what nanoGPT and nanochat have, which people enjoy reading.
TOKENS_A_LINE = 8.7
TUPLE_ASSIGNMENTS = 1.0  # `a, b = c, d` for each 1,000 tokens

# What a chapter adds to the one before, leaves behind of it, and changes.
PLAN = yaml.safe_load((ROOT / "appendix" / "chapters.yaml").read_text())


def planned(chapter: str, kind: str) -> set[str]:
    """The files that a chapter "adds", "leaves" or "changes"."""
    return set(PLAN.get(chapter, {}).get(kind, ()))


def tracked(*names: str) -> list[Path]:
    """The files that git knows under these names."""
    command = ["git", "ls-files", "-z", *names]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if (ROOT / name).is_file()]


def files(chapter: str) -> set[str]:
    """The files of a chapter, relative to its folder."""
    return {str(path.relative_to(ROOT / chapter)) for path in tracked(chapter)}


def differences(chapter: str) -> list[str]:
    """Where a chapter differs from the one before, and may not; what the plan has wrong."""
    before = CHAPTERS[CHAPTERS.index(chapter) - 1]
    own = ("README.md", "results/", "tests/")
    old = {name for name in files(before) if not name.startswith(own)}
    new = {name for name in files(chapter) if not name.startswith(own)}
    expected = old - planned(chapter, "leaves") | planned(chapter, "adds")
    known = planned(chapter, "adds") & old
    gone = planned(chapter, "leaves") - old
    found = [f"{chapter} adds {name}, which {before} has" for name in sorted(known)]
    found += [f"{chapter} leaves {name}, not in {before}" for name in sorted(gone)]
    found += [f"{chapter}/{name} is missing" for name in sorted(expected - new)]
    found += [f"{chapter}/{name} is not listed" for name in sorted(new - expected)]
    for name in sorted((old & new) - planned(chapter, "changes")):
        if (ROOT / before / name).read_bytes() != (ROOT / chapter / name).read_bytes():
            found.append(f"{chapter}/{name} differs from {before}/{name}")
    return found


def new_lines(chapter: str, name: str) -> list[int]:
    """The tokens of each line that the nearest earlier chapter with this file has not."""
    here = ROOT / chapter / name
    counts = list(code_lines(here).values())
    earlier = CHAPTERS[: CHAPTERS.index(chapter)]
    for before in reversed(earlier):
        old = ROOT / before / name
        if not old.is_file():
            continue
        if old.read_bytes() == here.read_bytes():
            return []
        if before != earlier[-1]:  # a file that comes back after a gap counts as new
            return counts
        a, b = texts(old), texts(here)
        new = []
        blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        for kind, _, _, first, end in blocks:
            if kind != "equal":
                new += counts[first:end]
        return new
    return counts


def words(*names: str) -> int:
    """Words of Markdown files, tables included, without code, comments and addresses."""
    number = 0
    for path in tracked(*names):
        if path.suffix == ".md":
            ignored = r"```.*?```|<!--.*?-->|\]\([^)]*\)"
            text = re.sub(ignored, " ", path.read_text(), flags=re.DOTALL)
            number += sum(bool(re.search(r"\w", word)) for word in text.split())
    return number


def style(chapter: str) -> list[str]:
    """Print how dense the chapter's new or changed files are; returns what is too dense."""
    paths = []
    for name in sorted(files(chapter)):
        path = ROOT / chapter / name
        if is_code(path) and not is_test(path) and new_lines(chapter, name):
            paths.append(path)
    density = tokens(paths) / sum(len(code_lines(path)) for path in paths)
    tuples = 1000 * sum(map(tuple_assignments, paths)) / tokens(paths)
    print(f"  {density:11.1f}  {tuples:6.1f}")
    found = []
    if density > TOKENS_A_LINE:
        found.append(f"{chapter}: {density:.1f} tokens a line, of {TOKENS_A_LINE}")
    if tuples > TUPLE_ASSIGNMENTS:
        found.append(
            f"{chapter}: {tuples:.1f} tuple assignments, of {TUPLE_ASSIGNMENTS}"
        )
    for path in paths:
        place = path.relative_to(ROOT)
        found += [f"{place} {length}" for length in too_long(path)]
        for definition in comments_in_place_of_docstrings(path):
            found.append(
                f"{place} {definition}: a docstring belongs in place of its comment"
            )
    return found


def sizes(chapter: str) -> tuple[int, int, int]:
    """New tokens of code, new tokens of tests, words."""
    code = [name for name in files(chapter) if is_code(Path(name))]
    tests = {name for name in code if name.startswith("tests/")}
    return (
        sum(sum(new_lines(chapter, name)) for name in set(code) - tests),
        sum(sum(new_lines(chapter, name)) for name in tests),
        words(chapter),
    )


def imported(chapter: str, script: str) -> set[Path]:
    """The chapter's files that a script imports, or that its default configuration names."""
    folder = ROOT / chapter
    text = (folder / "config" / "config.yaml").read_text()
    text += (folder / "config" / "cli_config.yaml").read_text()
    named = re.findall(r"class_path: (src[\w.]*)", text)
    todo = [script.removesuffix(".py"), *(name.rpartition(".")[0] for name in named)]
    seen: set[Path] = set()
    while todo:
        path = folder / f"{todo.pop().replace('.', '/')}.py"
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                todo.append(node.module)
                todo += [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
    return seen


def whole_sizes() -> list[int]:
    """The figures of WHOLE."""
    last = [p for p in tracked(CHAPTERS[-1]) if is_code(p) and not is_test(p)]
    reached = imported(CHAPTERS[-1], "lightning_train.py")
    others = [
        p for p in tracked("*.py") if p.relative_to(ROOT).parts[0] not in CHAPTERS
    ]
    tests = {path for path in others if is_test(path)}
    return [
        tokens(last),
        len(last),
        tokens(reached),
        len(reached),
        tokens(set(others) - tests),
        tokens(tests),
        words("appendix"),
        words("README.md", "CONTRIBUTING.md"),
    ]


def main() -> int:
    """Print the table and what is wrong. Returns 1 if something is."""
    wrong = []
    print(
        "new in the chapter        code             tests            words   tokens/line  tuples"
    )
    for chapter in CHAPTERS:
        print(f"{chapter:18}", end="")
        kinds = ("tokens of code", "tokens of tests", "words")
        for kind, size, most in zip(
            kinds, sizes(chapter), LIMITS[chapter], strict=True
        ):
            print(f"{size:8,} of {most:6,}", end="")
            if size > most:
                wrong.append(f"{chapter}: {size:,} of {most:,} {kind}")
        wrong += style(chapter)
        if chapter != CHAPTERS[0]:
            wrong += differences(chapter)
    for size, (kind, most) in zip(whole_sizes(), WHOLE.items(), strict=True):
        print(f"{kind:34}{size:7,} of {most:6,}")
        if size > most:
            wrong.append(f"{kind}: {size:,} of {most:,}")
    print(
        "\n".join(wrong)
        or "all chapters: within their limits, identical where they have to be"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
