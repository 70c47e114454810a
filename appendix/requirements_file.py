"""The packages of a chapter's container, with hashes: a part of the repository's requirements.txt.

  uv run python appendix/requirements_file.py           after a new lock: write them anew
  uv run python appendix/requirements_file.py --check   say whether they belong to the lock

``requirements.txt`` in ``5_whats_next`` has what the trainings need, without the tools of the
development. ``requirements-cpu.txt`` lacks PyTorch and its CUDA libraries as well: a PyTorch
without CUDA comes from an index of its own.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

from portable_lock import ROOT, committed, installed

FOLDER = ROOT / "5_whats_next"
CUDA = re.compile(r"nvidia-|cuda-|triton$|torch$")


def blocks(requirements: str) -> dict[str, str]:
    """The entries of a requirements file, each with its hashes, by the package's name.

    A package may have several, for several Pythons.
    """
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=[a-z0-9])", requirements.rstrip("\n")):
        name = re.split(r"[=\[ ]", block, maxsplit=1)[0]
        found[name] = found.get(name, "") + block + "\n"
    return found


def runtime(lock: str) -> set[str]:
    """Names of what the project needs to run, from the text of ``uv.lock``."""
    packages = tomllib.loads(lock)["package"]
    for package in packages:
        package.pop("dev-dependencies", None)
    return installed(packages)


def container_files(lock: str, requirements: str) -> dict[str, str]:
    """The texts of both files by their names."""
    wanted = runtime(lock)
    chosen = {name: block for name, block in blocks(requirements).items() if name in wanted}
    without = [block for name, block in chosen.items() if not CUDA.match(name)]
    return {"requirements.txt": "".join(chosen.values()), "requirements-cpu.txt": "".join(without)}


def stale(folder: Path, files: dict[str, str]) -> list[str]:
    """What is missing, or not what the lock says."""
    found = []
    for name, text in files.items():
        path = folder / name
        if not path.is_file() or path.read_text() != text:
            found.append(f"{path.name} does not belong to uv.lock: appendix/requirements_file.py")
    return found


def main() -> int:
    """Write or check; the exit code is 1 if the check fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether they are stale")
    given = parser.parse_args()
    files = container_files(committed("uv.lock"), committed("requirements.txt"))
    if given.check:
        found = stale(FOLDER, files)
        print("\n".join(found) or "the container's requirements belong to uv.lock")
        return 1 if found else 0
    for name, text in files.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
