"""Carry a change of one chapter's files to the later chapters that have them.

  uv run python appendix/carry.py 0_setup/src/optim.py ...   before the change is committed

The change is what differs from the last commit. Where a later chapter has a version of its own, git
merges; a conflict is left in that file with the usual markers.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from chapters import CHAPTERS, ROOT, planned


def carry(path: Path) -> list[str]:
    """Carry one file's change; returns the files with conflicts."""
    chapter, name = path.parts[0], Path(*path.parts[1:])
    show = subprocess.run(
        ["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True
    )
    conflicts = []
    for later in CHAPTERS[CHAPTERS.index(chapter) + 1 :]:
        copy = ROOT / later / name
        if str(name) in planned(later, "leaves"):
            break
        if not (ROOT / path).exists():  # deleted
            copy.unlink(missing_ok=True)
        elif show.returncode:  # new
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / path).read_bytes())
        elif copy.exists():
            with tempfile.NamedTemporaryFile() as base:
                base.write(show.stdout)
                base.flush()
                merge = [
                    "git",
                    "merge-file",
                    "-L",
                    later,
                    "-L",
                    "before",
                    "-L",
                    chapter,
                ]
                done = subprocess.run([*merge, copy, base.name, ROOT / path])
            conflicts += [f"{later}/{name}"] if done.returncode else []
    return conflicts


if __name__ == "__main__":
    found = [conflict for path in sys.argv[1:] for conflict in carry(Path(path))]
    sys.exit(f"error: conflicts in {', '.join(found)}" if found else 0)
