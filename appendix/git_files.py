"""Ask git about files as they are on disk, whether they are committed or not."""

import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE, EXECUTABLE, LINK = "100644", "100755", "120000"  # git's modes
DIFF = ["-c", "core.quotePath=off", "diff", "--no-index", "--diff-algorithm=default"]


class UserError(Exception):
    """A mistake of the caller, told in one line."""


@dataclass(frozen=True)
class Content:
    """What git keeps of a file: its bytes (of a link, the path it points to) and its mode."""

    data: bytes
    mode: str = FILE


def git(folder: Path, *words: str, allowed: tuple[int, ...] = (0,)) -> bytes:
    """What a git command prints; a failure is a UserError with git's first line."""
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
    if done.returncode not in allowed:
        raise UserError(f"git: {done.stderr.decode(errors='replace').partition(os.linesep)[0]}")
    return done.stdout


def read(path: Path) -> Content | None:
    """The file on disk; None if there is none."""
    if path.is_symlink():
        return Content(os.fsencode(path.readlink()), LINK)
    if not path.is_file():
        return None
    return Content(path.read_bytes(), EXECUTABLE if os.access(path, os.X_OK) else FILE)


def copy_side(root: Path, chapter: str, file: str, folder: Path) -> str:
    """Copy what git keeps of a file, for a diff in ``folder``; /dev/null if there is none."""
    content = read(root / chapter / file)
    if not content:
        return os.devnull
    # A link as the text it holds: git would follow one that points to a folder.
    copy = folder / chapter / file
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(content.data)
    copy.chmod(0o755 if content.mode == EXECUTABLE else 0o644)
    return f"{chapter}/{file}"


def git_diff(root: Path, old: str, new: str, file: str, *options: str) -> bytes:
    """``git diff`` of a file between two chapters as they are on disk, committed or not."""
    with tempfile.TemporaryDirectory() as folder:
        sides = [copy_side(root, chapter, file, Path(folder)) for chapter in (old, new)]
        return git(Path(folder), *DIFF, *options, "--", *sides, allowed=(0, 1))


def line_counts(
    root: Path, old: str, new: str, files: Iterable[str]
) -> dict[str, tuple[int, int] | None]:
    """Lines added and removed in each file, None for a binary one; git counts all of them at once.

    A file whose text is the same in both chapters is not in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        for chapter in (old, new):
            (Path(folder) / chapter).mkdir()
            for file in files:
                copy_side(root, chapter, file, Path(folder))
        words = [*DIFF, "--numstat", "-z", "--no-renames", "--", old, new]
        printed = git(Path(folder), *words, allowed=(0, 1))
    # Each file is "added TAB removed TAB" and two paths, one of which may be /dev/null.
    parts = printed.split(b"\0")
    found: dict[str, tuple[int, int] | None] = {}
    for counts, before, after in zip(parts[0::3], parts[1::3], parts[2::3], strict=False):
        path = os.fsdecode(before if after == os.devnull.encode() else after)
        added, removed, _ = counts.split(b"\t")
        found[path.partition("/")[2]] = None if added == b"-" else (int(added), int(removed))
    return found
