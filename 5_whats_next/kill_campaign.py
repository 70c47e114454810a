"""Kill a training at every step, and see whether it comes back to the same curve, to the bit.

uv run python kill_campaign.py                        all 96 cases, in about half an hour
uv run python kill_campaign.py --steps 5 --ranks 2    the cases with these settings

A case: SIGKILL to all processes of a tiny training as a step begins, then the same command again;
with its folder as it was left (disk), or without it (cloud).
"""

import argparse
import csv
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import lightning_train
from src.callbacks import CloudUploadCallback
from src.config import CHAPTER
from src.lightning_callbacks import StopAndSave
from tqdm import tqdm

EVERYTHING = {"steps": range(12), "ranks": (1, 2), "workers": (0, 2), "origins": ("disk", "cloud")}


class Case(NamedTuple):
    """Where a training is killed, and what it comes back from."""

    step: int
    ranks: int
    workers: int
    origin: str


def train(case: Case, output: Path, script: str = "lightning_train.py", **environment: str) -> str:
    """Begin or continue the case's training in a process group of its own; returns what it says."""
    name = "-".join(map(str, case))
    words = [script, "-c", "config/campaign.yaml", f"--data.num_workers={case.workers}"]
    words += [f"--trainer.devices={case.ranks}", f"--trainer.output_dir={output}"]
    words += [f"--trainer.run_name={name}-{output.parent.name}"]
    command: Any = [sys.executable, *words]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    variables = os.environ | environment
    process = subprocess.run(
        command, cwd=CHAPTER, env=variables, start_new_session=True, check=False, **pipes
    )
    return process.stdout


def train_until_killed() -> None:
    """What this script does in a killed training: kill it as the step KILL_AT begins."""
    step = int(os.environ["KILL_AT"])

    def begin(callback: StopAndSave, trainer: Any, *_: object) -> None:
        if (trainer.global_step, trainer.global_rank) != (step, 0):
            return
        callbacks = [c for c in trainer.callbacks if isinstance(c, CloudUploadCallback)]
        uploader: Any = callbacks[0].uploader
        if step > 1:  # the first checkpoint has to be in the cloud; a later one is on its way
            with uploader.changed:
                uploader.changed.wait_for(lambda: uploader.uploaded)
        os.killpg(0, signal.SIGKILL)

    StopAndSave.on_train_batch_start = begin
    lightning_train.main()


def rows(output: Path) -> list[dict[str, str]]:
    """metrics.csv of the only run in a folder, but for the column that is a measurement."""
    (path,) = output.glob("*/metrics.csv")
    with path.open(newline="") as file:
        return [row | {"samples_per_second": ""} for row in csv.DictReader(file)]


def comes_back(case: Case, place: Path, reference: list[dict[str, str]]) -> str:
    """Kill, continue and compare; empty if all is well, else what is wrong."""
    output = place / "-".join(map(str, case))
    killed = train(case, output, "kill_campaign.py", KILL_AT=str(case.step))
    if "Trainer.fit` stopped" in killed:
        return "was not killed"
    if case.origin == "cloud":
        shutil.rmtree(output)
    text = train(case, output)
    if case.step > 1 and "training  steps 0 to" in text:
        return "began again"
    return "" if rows(output) == reference else f"has another curve: {text}"


def campaign(cases: list[Case]) -> dict[Case, str]:
    """What is wrong with each case; two of them at a time."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        reference = {}
        for ranks in {case.ranks for case in cases}:
            train(Case(-1, ranks, 0, "none"), Path(folder, f"reference-{ranks}"))
            reference[ranks] = rows(Path(folder, f"reference-{ranks}"))
        results = pool.map(lambda c: comes_back(c, Path(folder), reference[c.ranks]), cases)
        return dict(zip(cases, tqdm(results, "cases", len(cases), disable=None), strict=True))


def main() -> int:
    """Try the cases; print a table. Returns 1 if a training did not come back."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    for name, values in EVERYTHING.items():
        kind: Any = type(values[0])
        parser.add_argument(f"--{name}", nargs="+", type=kind, choices=values, default=values)
    chosen = vars(parser.parse_args())
    cases = [Case(*values) for values in itertools.product(*chosen.values())]
    wrong = campaign(cases)
    print("ranks  workers  from    came back to the reference curve")
    for kind, group in itertools.groupby(sorted(cases, key=lambda c: c[1:]), lambda c: c[1:]):
        members = list(group)
        good = sum(not wrong[case] for case in members)
        print(f"{kind[0]:>5}  {kind[1]:>7}  {kind[2]:<6}  {good} of {len(members)}")
    print("\n".join(f"{case}: {text}" for case, text in wrong.items() if text), end="")
    return int(any(wrong.values()))


if __name__ == "__main__":
    if "KILL_AT" in os.environ:
        train_until_killed()
    else:
        sys.exit(main())
