"""Check that a chapter is the one before it plus its lesson, as appendix/chapters.yaml lists it.

  uv run python appendix/chapters.py    name every difference that is not listed, and the reverse

Compared are the files on disk that git does not ignore: bytes, executable bit, targets of links.
"""

import argparse
import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import yaml
from git_files import UserError, git, line_counts, read

ROOT = Path(__file__).resolve().parents[1]
LIST = "appendix/chapters.yaml"
SECTIONS = ("adds", "changes", "leaves")


@dataclass(frozen=True)
class Difference:
    """A file that one chapter adds to another, changes or leaves behind."""

    path: str
    kind: str
    lines: tuple[int, int] | None  # added and removed; None for a binary file
    entry: str  # the file or folder of the list that covers it
    phrase: str


def is_own(file: str) -> bool:
    """Whether every chapter has its own version of the file."""
    return file == "README.md" or file.startswith("results/")


def files(root: Path, chapter: str) -> list[str]:
    """The chapter's files as git sees the working tree: tracked or new, not ignored, not gone."""
    words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", chapter]
    names = {os.fsdecode(name) for name in git(root, *words).split(b"\0")}
    kept = [name for name in names if (root / name).is_file() or (root / name).is_symlink()]
    return sorted(name.removeprefix(f"{chapter}/") for name in kept)


def chapters(root: Path) -> list[str]:
    """The chapters' folders in order; what git has emptied but output/ keeps alive is none."""
    folders = sorted(path for path in root.glob("[0-9]_*") if path.is_dir())
    return [path.name for path in folders if files(root, path.name)]


def before(root: Path, chapter: str) -> str:
    """The chapter before this one."""
    names = chapters(root)
    if chapter not in names[1:]:
        raise UserError(f"no chapter comes before {chapter}: give one of {', '.join(names[1:])}")
    return names[names.index(chapter) - 1]


def load(root: Path) -> dict[str, dict[str, dict[str, str]]]:
    """The list: chapter -> section -> file or folder -> phrase."""
    try:
        plan = yaml.safe_load((root / LIST).read_text(encoding="utf-8")) or {}
        for chapter, given in plan.items():
            plan[chapter] = {name: dict(entries or {}) for name, entries in given.items()}
            words = [word for e in plan[chapter].values() for pair in e.items() for word in pair]
            if set(given) - set(SECTIONS) or not all(isinstance(word, str) for word in words):
                raise ValueError(f"{chapter} needs sections {SECTIONS} of `file: a phrase`")
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{LIST}: {' '.join(str(error).split())}") from None
    return plan


def covers(entry: str, file: str) -> bool:
    """Whether an entry of the list is this file, or a folder that holds it."""
    return file.startswith(entry) if entry.endswith("/") else file == entry


def kinds(root: Path, old: str, new: str) -> dict[str, str]:
    """What chapter ``new`` does to each file that it or ``old`` has; "same" for identical ones."""
    ours, theirs = set(files(root, new)), set(files(root, old))

    def kind(file: str) -> str:
        if file not in ours or file not in theirs:
            return "adds" if file in ours else "leaves"
        return "same" if read(root / old / file) == read(root / new / file) else "changes"

    return {file: kind(file) for file in sorted(ours | theirs) if not is_own(file)}


def unlisted(old: str, new: str, file: str, kind: str) -> str:
    """The complaint about a difference that the list does not have."""
    carry = f"carry it (appendix/carry.py {old}/{file})"
    what = {
        "changes": f"differs from {old} in bytes or mode: {carry}",
        "adds": f"is not in {old}: remove it",
        "leaves": f"is missing, {old} has it: {carry}",
    }
    return f"{new}/{file} {what[kind]} or list it under {kind} in {LIST}"


def untrue(found: dict[str, str], section: str, entry: str) -> str:
    """Why an entry does not describe the files that it covers; empty if it does."""
    says = {"same": "is identical", "changes": "is in both", "adds": "is new", "leaves": "is gone"}
    covered = {file: kind for file, kind in found.items() if covers(entry, file)}
    wrong = [f"{file} {says[kind]}" for file, kind in covered.items() if kind != section]
    return next(iter(wrong), "" if covered else "neither chapter has it")


def check(root: Path) -> list[str]:
    """All that the list and the chapters disagree about, a line each; nothing if they agree."""
    plan, names = load(root), chapters(root)
    problems = [f"{LIST}: {name} follows no chapter" for name in plan if name not in names[1:]]
    for old, new in itertools.pairwise(names):
        found, sections = kinds(root, old, new), plan.get(new, {})
        problems += [
            unlisted(old, new, file, kind)
            for file, kind in found.items()
            if kind != "same" and not any(covers(entry, file) for entry in sections.get(kind, {}))
        ]
        problems += [
            f"{LIST} lists {entry} under {section} of {new}, but {reason}: correct the list"
            for section, entries in sections.items()
            for entry in entries
            if not is_own(entry) and (reason := untrue(found, section, entry))
        ]
    return problems


def differences(root: Path, old: str, new: str) -> list[Difference]:
    """All differences between two chapters, in reading order: code, tests, what is left behind."""
    plan, names = load(root), chapters(root)
    first, last = sorted((names.index(old), names.index(new)))
    sections = [pair for name in names[first + 1 : last + 1] for pair in plan.get(name, {}).items()]
    listed = [(section, *item) for section, entries in sections for item in entries.items()]
    found = []
    differ = {file: kind for file, kind in kinds(root, old, new).items() if kind != "same"}
    lines = line_counts(root, old, new, differ)
    for file, kind in differ.items():
        # The last chapter's word counts, and before all the entry that names the same kind.
        matches = [n for n, (_, entry, _) in enumerate(listed) if covers(entry, file)]
        place = max(matches, key=lambda n: (listed[n][0] == kind, n), default=len(listed))
        _, entry, phrase = listed[place] if matches else ("", file, "")
        key = (kind == "leaves", file.startswith("tests/"), place, file)
        found.append((key, Difference(file, kind, lines.get(file, (0, 0)), entry, phrase)))
    return [difference for _, difference in sorted(found, key=lambda pair: pair[0])]


def counted(group: list[Difference]) -> str:
    """Lines added and removed, such as ``+3 −1``."""
    if any(one.lines is None for one in group):
        return "binary"
    added, removed = (sum(one.lines[n] for one in group if one.lines) for n in (0, 1))
    words = f"+{added}" * (added > 0), f"−{removed}" * (removed > 0)
    return " ".join(filter(None, words)) or ("mode" if group[0].kind == "changes" else "empty")


def totals(root: Path, old: str, new: str) -> str:
    """One sentence: how many files are identical, added, changed and left behind."""
    found = list(kinds(root, old, new).values())
    same, *others = (found.count(kind) for kind in ("same", *SECTIONS))
    return (
        f"Files against `{old}`: {same} byte-identical, {others[0]} added, {others[1]} changed, "
        f"{others[2]} left behind, not counting README.md and results/."
    )


def what_changed(root: Path, chapter: str) -> str:
    """A Markdown table of what the chapter does to the one before it, and a sentence of totals."""
    old = before(root, chapter)
    rows: dict[tuple[str, str], list[Difference]] = {}
    for one in differences(root, old, chapter):
        rows.setdefault((one.kind, one.entry), []).append(one)
    table = ["| file | lines | what it is |", "|---|---|---|"]
    for (kind, entry), group in rows.items():
        # What is left behind is shown where it is: in the chapter before.
        name, target = (f"{old}/{entry}", f"../{old}/{entry}") if kind == "leaves" else [entry] * 2
        phrase = group[0].phrase.replace("|", "\\|")
        table.append(f"| [`{name}`]({quote(target)}) | {counted(group)} | {phrase} |")
    return "\n".join([*table, "", totals(root, old, chapter)])


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check; the exit code is 1 if there is something to say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    try:
        problems = check(root)
    except UserError as error:
        parser.error(str(error))
    print("\n".join(problems) or "every chapter is the one before it plus what the list names")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
