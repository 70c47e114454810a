"""Carry a change of a file to the copies that later chapters hold, by three-way merge.

  uv run python appendix/carry.py 0_setup/src/optim.py   what changed in it since the last commit
  uv run python appendix/carry.py                        all that changed, in all chapters
  uv run python appendix/carry.py --base HEAD~1 FILE     what changed since another commit

It goes chapter by chapter: what a copy gains is then carried to the next one, and what a copy has
of its own stays. A new file is copied and a deleted one deleted; what appendix/chapters.yaml lists
under ``leaves`` ends there. At a conflict that copy and all after it stay as they are, and the exit
code is 1; a later chapter can be the start as well, once you have settled its copy by hand.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import chapters
from chapters import ROOT, covers, files, is_own
from git_files import EXECUTABLE, LINK, Content, UserError, git, read

CONFLICT = re.compile(r"^<{7} .*?^>{7} [^\n]*$", flags=re.MULTILINE | re.DOTALL)


def write(path: Path, content: Content | None) -> None:
    """Replace the file in one step, so that an interruption leaves the old one or the new one."""
    if content is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder of its own on the same disk: in it any name is free, also for a link.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
        new = Path(folder) / path.name
        if content.mode == LINK:
            new.symlink_to(os.fsdecode(content.data))
        else:
            new.write_bytes(content.data)
            kept = path if path.is_file() and not path.is_symlink() else new
            permissions = kept.stat().st_mode & 0o666
            # Whoever may read a program may run it.
            executable = (permissions & 0o444) >> 2 if content.mode == EXECUTABLE else 0
            new.chmod(permissions | executable)
        new.replace(path)


def is_text(content: Content | None) -> bool:
    """Whether it can be merged by lines: no link, and text as git guesses it."""
    return content is not None and content.mode != LINK and b"\0" not in content.data[:8000]


def merge(
    base: Content | None, ours: Content | None, theirs: Content | None, names: tuple[str, str]
) -> tuple[Content | None, bool]:
    """Apply what changed from ``base`` to ``theirs`` to ``ours``; None is a file that is not there.

    Returns:
        The merged file and True, or False at a conflict: the file is then ``ours``, with the
        markers of the conflict where it is text.
    """
    if base == theirs or ours == theirs:
        return ours, True
    if base == ours:
        return theirs, True
    if ours is None or theirs is None or not all(map(is_text, (ours, theirs, base or ours))):
        return ours, False
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("ours", "base", "theirs")]
        for path, content in zip(paths, (ours, base, theirs), strict=True):
            path.write_bytes(content.data if content else b"")
        words = ["git", "merge-file", "--stdout", "-L", names[0], "-L", "before", "-L", names[1]]
        done = subprocess.run([*words, *paths], capture_output=True, check=False)
    if done.returncode < 0 or done.returncode > 127:  # up to 127 it is the number of conflicts
        raise UserError(f"{names[0]}: {done.stderr.decode(errors='replace').strip()}")
    changes_mode = base is None or base.mode != theirs.mode
    merged = Content(done.stdout, theirs.mode if changes_mode else ours.mode)
    return merged, done.returncode == 0


def committed(root: Path, revision: str, path: str) -> Content | None:
    """A file as it was in a commit."""
    entry = git(root, "ls-tree", "-z", revision, "--", path).partition(b"\t")[0].split()
    if not entry or entry[1] != b"blob":
        return None
    return Content(git(root, "cat-file", "blob", entry[2].decode()), entry[0].decode())


class Repository:
    """The chapters on disk, and as they were in a commit."""

    def __init__(self, root: Path, revision: str) -> None:
        self.root, self.revision = root, revision
        self.plan, self.chapters = chapters.load(root), chapters.chapters(root)
        words = ["rev-parse", "--quiet", "--verify", "--end-of-options", f"{revision}^{{commit}}"]
        if not git(root, *words, allowed=(0, 1)):
            raise UserError(f"{revision} is no commit")

    def is_left(self, chapter: str, file: str) -> bool:
        """Whether the list says that the chapter does not take the file over."""
        return any(covers(entry, file) for entry in self.plan.get(chapter, {}).get("leaves", {}))

    def base(self, chapter: str, file: str) -> Content | None:
        """The committed file; of a chapter that is not committed, what it was a copy of."""
        found = committed(self.root, self.revision, f"{chapter}/{file}")
        place = self.chapters.index(chapter)
        if found or place == 0 or self.is_left(chapter, file):
            return found
        return self.base(self.chapters[place - 1], file)

    def candidates(self) -> list[str]:
        """Paths of all files that git calls changed, deleted or new since the commit."""
        changed = ["diff", "--name-only", "--no-renames", "--relative", "-z", self.revision, "--"]
        new = ["ls-files", "-z", "--others", "--exclude-standard", "--"]
        names = b"".join(git(self.root, *words, *self.chapters) for words in (changed, new))
        return sorted({os.fsdecode(name) for name in names.split(b"\0") if name})

    def split(self, given: str) -> tuple[str, str]:
        """Chapter and file of a path that is relative to the current folder or to the root."""
        for start in (Path.cwd(), self.root):
            path = Path(os.path.relpath(start / given, self.root)).as_posix()
            chapter, _, file = path.partition("/")
            if chapter not in self.chapters or not file:
                continue
            if is_own(file):
                raise UserError(f"{path} is the chapter's own: it is not carried")
            if file in files(self.root, chapter) or committed(self.root, self.revision, path):
                return chapter, file
        raise UserError(f"{given} is no file of a chapter, or one that git ignores")


def is_unsettled(content: Content | None) -> bool:
    """Whether somebody has still to choose between the sides of a conflict."""
    text = content.data.decode(errors="replace") if content and is_text(content) else ""
    return CONFLICT.search(text) is not None


def outcome(
    base: Content | None, ours: Content | None, theirs: Content | None, merged: Content | None
) -> str:
    """What a merge without a conflict did to a copy, in a word or two."""
    if ours == theirs:
        return "identical already" if ours else "deleted already"
    if merged == ours:
        return "nothing to carry" if base == theirs else "has it already"
    if ours == base:
        return "copied" if merged else "deleted"
    return "merged"


def show_conflict(source: str, copy: str, sides: list[Content | None], merged: Content) -> None:
    """Print why the two cannot be merged, and where."""
    ours, theirs = sides
    if ours is None or theirs is None:
        gone, changed = (copy, source) if ours is None else (source, copy)
        print(f"{copy}: conflict: {gone} is gone, {changed} has changed")
    elif merged == ours:
        print(f"{copy}: conflict: {source} has changed as well, and they are not text")
    else:
        print(f"{copy}: conflict")
        text = merged.data.decode(errors="replace")
        for found in CONFLICT.finditer(text):
            print(f"line {text.count(chr(10), 0, found.start()) + 1}:\n{found[0]}")
    print(f"settle {copy} by hand, then run: appendix/carry.py {copy}")


def carry(
    repository: Repository, chapter: str, file: str, dry_run: bool = False, markers: bool = False
) -> bool:
    """Carry what changed in a chapter's file to all later copies, and print a line for each.

    Returns:
        False if a conflict ended it.
    """
    theirs, base = read(repository.root / chapter / file), repository.base(chapter, file)
    for later in repository.chapters[repository.chapters.index(chapter) + 1 :]:
        source, copy = f"{chapter}/{file}", f"{later}/{file}"
        if repository.is_left(later, file):
            print(f"{copy}: left behind there")
            return True
        ours = read(repository.root / copy)
        for name, content in ((source, theirs), (copy, ours)):
            if is_unsettled(content):
                print(f"{name}: conflict: it still holds the markers of one")
                return False
        merged, clean = merge(base, ours, theirs, (copy, source))
        known = repository.base(later, file)
        if not clean:
            show_conflict(source, copy, [ours, theirs], merged or Content(b""))
        else:
            note = " (it had uncommitted changes)" if ours and merged != ours != known else ""
            print(f"{copy}: {outcome(base, ours, theirs, merged)}{note}")
        if merged != ours and not dry_run and (clean or markers):
            write(repository.root / copy, merged)
        if not clean:
            return False
        chapter, base, theirs = later, known, merged
    return True


def starts(repository: Repository, given: list[str]) -> list[tuple[str, str]]:
    """The first chapter that changed each file, and the file: of those given, or of all."""
    paths = [repository.split(path) for path in given]
    for path in [] if given else repository.candidates():
        chapter, _, file = path.partition("/")
        paths += [] if is_own(file) else [(chapter, file)]
    found: dict[str, str] = {}
    for chapter, file in sorted(paths):
        if read(repository.root / chapter / file) != repository.base(chapter, file):
            found.setdefault(file, chapter)
    for chapter, file in paths:
        if given and file not in found:
            print(f"{chapter}/{file}: no change since {repository.revision} (see --base)")
    return [(chapter, file) for file, chapter in found.items()]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Carry the given files or all; the exit code is 1 if there was a conflict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="changed files; without any, all that changed")
    parser.add_argument(
        "--base", default="HEAD", metavar="REV", help="the commit before the change"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, only")
    parser.add_argument("--markers", action="store_true", help="write conflicts into the copies")
    given = parser.parse_args(arguments)
    try:
        repository = Repository(root, given.base)
        changed = starts(repository, given.files)
        if not changed and not given.files:
            print(f"nothing changed since {given.base}")
        clean = [carry(repository, *start, given.dry_run, given.markers) for start in changed]
    except (UserError, OSError) as error:
        parser.error(str(error))
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
