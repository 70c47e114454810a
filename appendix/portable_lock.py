"""Write the lock in a form that names no index and no download address.

  uv lock                                   resolve, with whatever index this machine uses
  uv run python appendix/portable_lock.py   rewrite uv.lock and requirements.txt for the commit
  uv run python appendix/portable_lock.py --check   say whether the committed files are portable

``uv lock`` writes the address of every file into ``uv.lock``, so a lock made behind a mirror sends
everybody to that mirror (https://github.com/astral-sh/uv/issues/6349). The portable form keeps each
package's name, version, dependencies and markers. ``uv sync`` takes those as preferences, resolves
to the same versions on any index, and completes the file in your working copy: this is why git
shows it as modified afterwards.
"""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXPORT = ["uv", "export", "--quiet", "--frozen", "--no-header", "--no-annotate"]
EXPORT += ["--no-emit-project", "--group", "gcs"]  # gcs: for the image


def portable(lock: str) -> str:
    """The portable form of the text of a ``uv.lock``."""
    lock = re.sub(r'registry = "[^"]*"', 'registry = "index"', lock)
    lock = re.sub(r"^sdist = .*\n", "", lock, flags=re.MULTILINE)
    lock = re.sub(r"^wheels = \[\n(?:.*\n)*?\]\n", "", lock, flags=re.MULTILINE)
    # Tables that repeat pyproject.toml, up to the next table. Not [options]: without it uv takes
    # exclude-newer for a new setting, and the newest versions instead of the locked ones.
    tables = r"^\[package\.metadata[^\]]*\]\n(?:(?!\[).*\n)*"
    return re.sub(tables, "", lock, flags=re.MULTILINE)


def problems(lock: str, requirements: str, exported: str) -> list[str]:
    """What keeps the two files from being portable, or in step; nothing if they are."""
    found = []
    if lock != portable(lock):
        found.append("uv.lock is as uv wrote it: run appendix/portable_lock.py")
    if "://" in lock + requirements:
        found.append("uv.lock or requirements.txt has an address")
    # After `uv sync`: another version, or a file of another content under a known one.
    files = re.compile(r"^[^\s#]+==[^\s;]*|--hash=\S+", re.MULTILINE)
    if unknown := set(files.findall(exported)) - set(files.findall(requirements)):
        found.append(f"not in requirements.txt: {', '.join(sorted(unknown))}")
    return found


def main() -> int:
    """Rewrite or check; the exit code is 1 if the check fails."""
    run = partial(subprocess.check_output, cwd=ROOT, text=True)
    exported = run(EXPORT)
    if "--check" in sys.argv:
        # The files as git has them staged or committed: ``uv sync`` changes the working copy.
        lock = run(["git", "show", ":uv.lock"])
        requirements = run(["git", "show", ":requirements.txt"])
        wrong = problems(lock, requirements, exported)
        print("\n".join(wrong) or "uv.lock and requirements.txt are portable")
        return bool(wrong)
    # The hashes come from the complete lock, so they are written first.
    (ROOT / "requirements.txt").write_text(exported)
    (ROOT / "uv.lock").write_text(portable((ROOT / "uv.lock").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
