"""The reader's whole way: run every command of the READMEs as it is printed, in a fresh clone.

  uv run python appendix/walk.py                 all of them, in reading order: about two hours
  uv run python appendix/walk.py 0_setup appendix    these READMEs
  uv run python appendix/walk.py --rest          what is new or changed, or has failed
  uv run python appendix/walk.py --list          which are run, and which are not, and why

The clone has what is committed, an environment of its own, and nothing else. appendix/walk.yaml
lists what cannot be run as printed; appendix/walk.json keeps what was run, and a test compares it
with the READMEs. A command that fails is shown with the end of its output, and the exit code is 1.
"""

import argparse
import datetime
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from measure import ROOT, hardware, versions
from terminal import Background, Terminal

# Blocks of bash, other blocks, what cog made of measurements, commands inside of sentences.
TOKEN = re.compile(
    r"^ *```bash\n(?P<block>.*?)^ *```|^ *```.*?^ *```|\[\[\[cog\b.*?\[\[\[end\]\]\]"
    r"|`(?P<inline>(?:uv\s+run|git\s+diff)\s[^`]+)`",
    re.DOTALL | re.MULTILINE,
)
CHAPTERS = ("[0-9]_*/README.md", "[0-9]_*/*/README.md")
PLACES = ("README.md", *CHAPTERS, "appendix/README.md", "CONTRIBUTING.md")
MARKS = {"not", "test", "instead", "why", "before", "until", "keep", "code"}


@dataclass(frozen=True)
class Step:
    """A command of a README, and what appendix/walk.yaml says of it."""

    readme: str
    command: str
    mark: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_run(self) -> bool:
        return "not" not in self.mark


def readmes(root: Path) -> list[Path]:
    """In reading order."""
    return [path for place in PLACES for path in sorted(root.glob(place))]


def commands(text: str) -> list[str]:
    """The commands of a README, without their remarks; in a sentence, those that no block has."""
    found: list[tuple[str, bool]] = []
    for token in TOKEN.finditer(text):
        if token["inline"]:
            found.append((" ".join(token["inline"].split()), True))
        lines = re.sub(r"\\\n\s*", "", token["block"] or "").splitlines()
        found += [(line.partition("  #")[0].strip(), False) for line in lines if line.strip()]
    in_blocks, chosen = {command for command, inline in found if not inline}, list[str]()
    for command, inline in found:
        if not inline or command not in {*in_blocks, *chosen}:
            chosen.append(command)
    return chosen


def steps(root: Path) -> list[Step]:
    """All commands of all READMEs; raises ValueError if walk.yaml has a mark for none of them."""
    marks = yaml.safe_load((root / "appendix" / "walk.yaml").read_text()) or {}
    found, unused = [], {(readme, command) for readme in marks for command in marks[readme]}
    for path in readmes(root):
        readme = path.relative_to(root).as_posix()
        for command in commands(path.read_text()):
            mark = marks.get(readme, {}).get(command, {})
            if unknown := set(mark) - MARKS:
                raise ValueError(f"walk.yaml: {command}: {unknown} is none of {sorted(MARKS)}")
            found.append(Step(readme, command, mark))
            unused.discard((readme, command))
    if unused:
        raise ValueError(f"walk.yaml: not in the READMEs any more: {sorted(unused)}")
    return found


def place(clone: Path, step: Step) -> Path:
    """Where a reader is: in the chapter, or at the root if the command names a chapter's path."""
    chapter = clone / Path(step.readme).parts[0]
    if not chapter.is_dir():
        return clone
    for word in step.command.split():
        if re.match(r"\d_\w+|appendix/", word) and not (chapter / word).exists():
            return clone
    return chapter if (chapter / "src").is_dir() else clone


@contextmanager
def fresh_clone(root: Path) -> Iterator[Path]:
    """A clone of what is committed, in a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="walk-"))
    try:
        subprocess.run(["git", "clone", "-q", str(root), str(folder / "clone")], check=True)
        yield folder / "clone"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def walk(clone: Path, todo: list[Step]) -> Iterator[dict[str, Any]]:
    """Run the commands of one README; a record of each: command, seconds, exit code, log."""
    log = clone.parent / "log.txt"
    terminal, running = Terminal(log), list[Background]()
    try:
        for step in todo:
            begin, start = log.stat().st_size, time.monotonic()
            folder = place(clone, step)
            if before := step.mark.get("before"):
                terminal.run(before, folder)
            command = step.mark.get("instead", step.command)
            if until := step.mark.get("until"):
                background = Background(command, folder, log)
                running.append(background)
                code: int | None = 0 if background.wait_for(until) else 1
                if code or not step.mark.get("keep"):
                    running.remove(background)
                    ended = background.stop()
                    code = code if ended == 0 else ended
            else:
                code = terminal.run(command, folder)
            seconds = round(time.monotonic() - start, 1)
            printed = log.read_bytes()[begin:].decode(errors="replace")
            yield {"command": step.command, "seconds": seconds, "code": code, "log": printed}
            if code is None:
                return
    finally:
        terminal.close()
        for background in running:
            background.stop()


def run(root: Path, names: list[str], rest: bool = False) -> int:
    """Walk, print a line for each command, and keep the record; how many commands failed.

    ``rest`` leaves out programs that the record has already, with the exit code that they shall
    have. What sets the shell up (cd, variables) is run all the same.
    """
    record_file = root / "appendix" / "walk.json"
    record = json.loads(record_file.read_text()) if record_file.exists() else {}
    chosen = [step for step in steps(root) if not names or Path(step.readme).parts[0] in names]
    failed = 0
    with fresh_clone(root) as clone:
        for readme in dict.fromkeys(step.readme for step in chosen):
            mine = [step for step in chosen if step.readme == readme and step.is_run]
            before = record.get(readme, {}).get("commands", [])
            ran = {row["command"]: row for row in before if rest}
            todo = [step for step in mine if not is_done(step, ran)]
            if not any(is_program(step) for step in todo):
                continue
            print(f"== {readme}", flush=True)
            for step, made in zip(todo, walk(clone, todo), strict=False):
                wrong = made["code"] != step.mark.get("code", 0)
                failed += wrong
                state = f"exit code {made['code']}" if wrong else "ok"
                print(f"{made['seconds']:7.1f} s  {state:12} {step.command}", flush=True)
                if wrong:
                    print("\n".join(made["log"].splitlines()[-20:]))
                row = {name: made[name] for name in ("command", "seconds", "code")}
                ran[step.command] = row | {"date": datetime.date.today().isoformat()}
            rows = [ran[step.command] for step in mine if step.command in ran]
            record[readme] = {"hardware": hardware(), "versions": versions(), "commands": rows}
            order = [path.relative_to(root).as_posix() for path in readmes(root)]
            record = {name: record[name] for name in order if name in record}
            temporary = record_file.with_suffix(".tmp")
            temporary.write_text(json.dumps(record, indent=1) + "\n")
            temporary.replace(record_file)
    return failed


def is_program(step: Step) -> bool:
    """Whether the command does more than to set up the shell."""
    return not re.match(r"(cd|set|export) |\w+=\S*\(", step.command)


def is_done(step: Step, ran: Mapping[str, Any]) -> bool:
    """Whether the program has run, and as it shall."""
    row = ran.get(step.command)
    return is_program(step) and row is not None and row["code"] == step.mark.get("code", 0)


def table() -> list[str]:
    """The lines of a table of what is in the record, for appendix/README.md."""
    record = json.loads((ROOT / "appendix" / "walk.json").read_text())
    listed = steps(ROOT)
    lines = [
        "| text | commands | run as printed | minutes | since | on |",
        "|---|---|---|---|---|---|",
    ]
    for readme, made in record.items():
        mine = [step for step in listed if step.readme == readme]
        as_printed = [step for step in mine if step.is_run and "instead" not in step.mark]
        minutes = sum(command["seconds"] for command in made["commands"]) / 60
        machine = f"{made['hardware']['processor']}, {made['hardware']['cores']} cores"
        oldest = min(command["date"] for command in made["commands"])
        counts = f"{len(mine)} | {len(as_printed)} | {minutes:.0f} | {oldest}"
        lines.append(f"| [{readme}](../{readme}) | {counts} | {machine} |")
    return lines


def main() -> int:
    """The exit code is 1 if a command failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted({path.relative_to(ROOT).parts[0] for path in readmes(ROOT)})
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(known)}; all if none is given")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument(
        "--rest", action="store_true", help="only what is not in the record, or failed there"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"{', '.join(unknown)}: allowed: {', '.join(known)}")
    if given.list:
        for step in steps(ROOT):
            print(f"{step.readme}: {step.command}")
            for name, value in step.mark.items():
                print(f"    {name}: {value}")
        return 0
    # A process that was started in the background of a shell ignores Ctrl-C, and so does all that
    # it starts, unless it says otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return 1 if run(ROOT, given.names, given.rest) else 0
    except KeyboardInterrupt:
        print("stopped; the READMEs that were complete are in walk.json")
        return 130


if __name__ == "__main__":
    sys.exit(main())
