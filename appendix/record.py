"""Run commands of a README, and put what they print between their markers.

  uv run python appendix/record.py 0_setup            all commands of the chapter's README
  uv run python appendix/record.py 0_setup default    one of them

A marker names a record and its command. What stands between it and the end is replaced:

  <!-- record default: uv run python pytorch_train.py -->
  <!-- end -->

Where it prints "look at FOLDER", the pictures of that folder which the README shows as
results/NAME-PICTURE.png are copied there.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"<!-- record (\w+): (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def hardware() -> str:
    """What the figures depend on besides the code."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return (
        f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, "
        f"torch {version('torch')}, lightning {version('lightning')}"
    )


def record(folder: Path, name: str, command: str) -> str:
    """Run the command in the chapter's folder; returns the new block."""
    print(f"{name}: {command}", flush=True)
    start = time.perf_counter()
    bash = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(bash, cwd=folder, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"error: exit code {done.returncode}\n{done.stdout}")
    for pictures in re.findall(r"look at ([^:\s]+)", done.stdout):
        for picture in (folder / pictures).glob("*.png"):
            copy = folder / "results" / f"{name}-{picture.name}"
            if f"results/{copy.name}" in (folder / "README.md").read_text():
                shutil.copy(picture, copy)
    # The number of a run depends on what ran here before.
    shown = re.sub(r"run_\d+", "run_1", done.stdout.strip("\n"))
    return (
        f"<!-- record {name}: {command} -->\n```console\n$ {command}\n{shown}\n```\n\n"
        f"*{seconds:.0f} s; {hardware()}.*\n<!-- end -->"
    )


def main() -> None:
    """Replace the chosen blocks."""
    folder = ROOT / sys.argv[1]
    readme = folder / "README.md"
    blocks = {block[1]: block for block in BLOCK.finditer(readme.read_text())}
    for name in sys.argv[2:] or blocks:
        new = record(folder, name, blocks[name][2])
        readme.write_text(readme.read_text().replace(blocks[name][0], new))


if __name__ == "__main__":
    main()
