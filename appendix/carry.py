"""Carry a change of one chapter's files to the later chapters that have them.

  uv run python appendix/carry.py 0_setup/src/run/optim.py ...   before the change is committed

The change is what differs from the last commit. A later copy that was the same gets the same bytes;
into one of its own git merges the change, and leaves a conflict there with the usual markers.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from chapters import CHAPTERS, ROOT


def carry(path: Path) -> list[str]:
    """Carry one file's change; returns the later files that have to be changed by hand."""
    show = ["git", "show", f"HEAD:{path}"]
    committed = subprocess.check_output(show, cwd=ROOT)
    chapter, *names = path.parts
    by_hand = []
    for later in CHAPTERS[CHAPTERS.index(chapter) + 1 :]:
        copy = ROOT.joinpath(later, *names)
        if copy.exists():
            with tempfile.NamedTemporaryFile() as base:
                base.write(committed)
                base.flush()
                # It takes the new text as it is where the copy was the committed one.
                merge = ["git", "merge-file", str(copy), base.name, str(ROOT / path)]
                if subprocess.run(merge).returncode:
                    by_hand.append(str(copy))
    return by_hand


if __name__ == "__main__":
    found = [copy for path in sys.argv[1:] for copy in carry(Path(path))]
    sys.exit(f"error: change by hand: {', '.join(found)}" if found else 0)
