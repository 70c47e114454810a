"""Carry a change of one chapter's files to the later chapters that have them.

  uv run python appendix/carry.py 0_setup/src/run/optim.py ...   before the change is committed

The change is what differs from the last commit. Where a later chapter has a version of its own, git
merges; a conflict is left in that file with the usual markers. A version of its own stays as it is,
and is named, where the file is new or deleted here.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from chapters import CHAPTERS, ROOT, planned


def content(path: Path) -> bytes | None:
    """The bytes of a file, or None if it is absent."""
    return path.read_bytes() if path.exists() else None


def committed(path: Path) -> bytes | None:
    """The bytes of a file in the last commit, or None if it was absent."""
    show = subprocess.run(
        ["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True
    )
    return None if show.returncode else show.stdout


def merge(copy: Path, before: bytes, new: Path, labels: list[str]) -> bool:
    """Merge the change into the copy; False if that left conflicts there."""
    command = ["git", "merge-file"]
    for label in labels:
        command += ["-L", label]
    with tempfile.NamedTemporaryFile() as base:
        base.write(before)
        base.flush()
        return subprocess.run([*command, copy, base.name, new]).returncode == 0


def carry(path: Path) -> list[str]:
    """Carry one file's change; returns the later files that have to be changed by hand."""
    chapter = path.parts[0]
    name = Path(*path.parts[1:])
    before = committed(path)
    after = content(ROOT / path)
    if chapter not in CHAPTERS or before is after is None:
        sys.exit(f"error: {path} is no file of a chapter, now or in the last commit")

    by_hand = []
    for later in CHAPTERS[CHAPTERS.index(chapter) + 1 :]:
        if str(name) in planned(later, "leaves"):
            break
        copy = ROOT / later / name
        theirs = content(copy)
        if theirs == after or (theirs is None and before is not None):
            continue  # carried already, or a chapter without this file
        if theirs != before:  # a version of its own
            labels = [later, "before", chapter]
            new = ROOT / path
            # What is new or deleted cannot be merged.
            if before is None or after is None or not merge(copy, before, new, labels):
                by_hand.append(f"{later}/{name}")
        elif after is None:
            copy.unlink()
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(after)
    return by_hand


if __name__ == "__main__":
    found = [copy for path in sys.argv[1:] for copy in carry(Path(path))]
    sys.exit(f"error: change by hand: {', '.join(found)}" if found else 0)
