"""Run a chapter's command and record what it printed, how long it took and what it was run on.

  uv run python appendix/measure.py 0_setup default "python pytorch_train.py"
  uv run python appendix/measure.py 0_setup --again     repeat all measurements of the chapter

The record goes to ``CHAPTER/results/NAME.json``, the pictures beside it. READMEs quote records and
nothing else, so no figure is typed by hand. A record also holds a digest of the code that made it,
which is what the command can reach: ``--check`` (and the test suite) says which records are older
than that.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from reach import reached_by_command

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "lightning", "numpy", "xarray", "matplotlib", "wandb")


def source_digest(chapter: Path, command: str | None = None) -> str:
    """A digest of what the command can reach; docstrings and comment lines do not count.

    Without a command it is one of all code and configs, which older records have.
    """
    digest = hashlib.sha256()
    if command:
        files = reached_by_command(chapter, command)
    else:
        patterns = ("*.py", "src/**/*.py", "config/*.yaml")
        files = {path for pattern in patterns for path in chapter.glob(pattern)}
    for path in sorted(files - {chapter / "conftest.py"}):
        text = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
        lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
        digest.update("\n".join([path.relative_to(chapter).as_posix(), *lines]).encode())
    return digest.hexdigest()


def hardware() -> dict[str, str]:
    """What the figures depend on besides the code."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*: (.*)$", cpuinfo.read_text(), flags=re.MULTILINE)
        model = found[1] if found else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "system": platform.system(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results and speed."""
    return {"Python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in PACKAGES
    }


def seconds_to_first_row(output: Path, stop: threading.Event, found: list[float]) -> None:
    """Note when metrics.csv of a new run gets its first row: the tenth step, by default."""
    start = time.perf_counter()
    before = set(output.glob("run_*"))
    while not stop.wait(0.05):
        for folder in set(output.glob("run_*")) - before:
            metrics = folder / "metrics.csv"
            if metrics.exists() and metrics.read_text().count("\n") >= 2:
                found.append(time.perf_counter() - start)
                return


def run_folders(output: Path) -> set[Path]:
    """The folders of all runs, and of comparisons of runs, which have a folder of their own."""
    return {*output.glob("run_*"), *output.glob("*/run_*")}


def measure(chapter: Path, name: str, command: str) -> dict:
    """Run ``command`` in the chapter's folder; returns the record."""
    output, results = chapter / "output", chapter / "results"
    before = run_folders(output)
    stop, first_row = threading.Event(), list[float]()
    watcher = threading.Thread(target=seconds_to_first_row, args=(output, stop, first_row))
    watcher.start()
    start = time.perf_counter()
    words = shlex.split(command)
    words[0] = sys.executable if words[0] == "python" else words[0]
    process = subprocess.Popen(words, cwd=chapter, stdout=subprocess.PIPE, text=True)
    printed = process.stdout.read() if process.stdout else ""
    # wait4 tells the memory of this child; RUSAGE_CHILDREN would be the largest of all so far.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    stop.set()
    watcher.join()
    if process.returncode:
        print(printed, end="")  # it may say what went wrong
        raise SystemExit(f"error: {command!r} ended with exit code {process.returncode}")
    made = run_folders(output) - before
    for folder in made:
        # The number of the run depends on what ran here before.
        path = folder.relative_to(chapter)
        printed = re.sub(rf"{path}\b", f"{path.parent}/run_1", printed)
    record = {
        "command": command,
        "hardware": hardware(),
        "versions": versions(),
        "reached": source_digest(chapter, command),
        "seconds": round(seconds, 1),
        "seconds_to_first_row": round(first_row[0], 1) if first_row else None,
        # Kilobytes on Linux, bytes on macOS.
        "peak_memory_mb": round(usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)),
        "stdout": printed,
    }
    results.mkdir(exist_ok=True)
    for folder in made:
        if (folder / "summary.json").exists():
            record["summary"] = json.loads((folder / "summary.json").read_text())
        for picture in folder.glob("*.png"):
            shutil.copy(picture, results / f"{name}-{picture.name}")
    (results / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def stale(chapter: Path) -> list[str]:
    """Names of the chapter's records that another version of the code made."""
    everything, names = source_digest(chapter), []
    for path in sorted((chapter / "results").glob("*.json")):
        made = json.loads(path.read_text())
        if "reached" in made:
            fresh = made["reached"] == source_digest(chapter, made["command"])
        else:
            fresh = made["sources"] == everything
        if not fresh:
            names.append(path.stem)
    return names


def main() -> int:
    """Measure once, again, or check; the exit code is 1 if a record is stale."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chapter", help="folder of the chapter, such as 0_setup")
    parser.add_argument("name", nargs="?", help="name of the record")
    parser.add_argument("command", nargs="?", help="what to run in the chapter's folder")
    parser.add_argument("--again", action="store_true", help="repeat the chapter's measurements")
    parser.add_argument("--check", action="store_true", help="only say which ones are stale")
    given = parser.parse_args()
    chapter = ROOT / given.chapter
    if not chapter.is_dir():
        parser.error(f"there is no chapter {given.chapter}")
    if given.check:
        names = stale(chapter)
        print(f"stale: {', '.join(names)}" if names else "all records belong to this code")
        return 1 if names else 0
    if given.again:
        for path in sorted((chapter / "results").glob("*.json")):
            made = json.loads(path.read_text())
            if "made_by" in made:
                print(f"{path.stem}: left as it is; {made['made_by']} makes it")
            else:
                measure(chapter, path.stem, made["command"])
        return 0
    if not given.name or not given.command:
        parser.error("give a name and a command, or --again, or --check")
    measure(chapter, given.name, given.command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
