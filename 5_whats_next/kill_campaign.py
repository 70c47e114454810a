"""Kill a training at every step, and see whether it comes back to the same curve, to the bit.

uv run python kill_campaign.py                        all 96 cases, in about an hour
uv run python kill_campaign.py --steps 5 --ranks 2    the cases with these settings

A case: SIGKILL to a tiny training as a step begins; then the same command again, with its folder
as it was left (disk), or without it (cloud).
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
from tqdm import tqdm

from src.callbacks import CloudUploadCallback
from src.config import CHAPTER
from src.stop_and_save import StopAndSave

EVERYTHING = {
    "steps": range(12),
    "ranks": (1, 2),
    "workers": (0, 2),
    "from": ("disk", "cloud"),
}


# Where a training is killed, and what it comes back from.
class Case(NamedTuple):
    step: int
    ranks: int
    workers: int
    origin: str


# Begin or continue the case's training; returns what it says.
def train(case: Case, output: Path, script: str, **environment: str) -> str:
    words = ["-c", "config/campaign.yaml", f"--data.num_workers={case.workers}"]
    words += [f"--trainer.devices={case.ranks}", f"--trainer.output_dir={output}"]
    # With the temporary folder's name: the cloud still has the runs of earlier campaigns.
    words += [f"--trainer.run_name={output.name}-{output.parent.name}"]
    # A session of its own, so that the whole process group can be killed.
    settings: Any = {
        "cwd": CHAPTER,
        "env": os.environ | environment,
        "start_new_session": True,
    }
    settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run([sys.executable, script, *words], **settings).stdout


# In the process that is to be killed: train, and kill the process group as a step begins.
def train_until_killed(kill_step: int) -> None:
    def kill_at_step(callback: StopAndSave, trainer: Any, *_: object) -> None:
        if (trainer.global_step, trainer.global_rank) == (kill_step, 0):
            (upload,) = [
                c for c in trainer.callbacks if isinstance(c, CloudUploadCallback)
            ]
            # The first checkpoint is offered as step 1 begins, after this hook. From step 2 on one
            # has to be in the cloud, and a later one is on its way.
            if kill_step > 1:
                with upload.uploader.changed:
                    upload.uploader.changed.wait_for(lambda: upload.uploader.uploaded)
            os.killpg(0, signal.SIGKILL)

    # A callback of every training, which runs before the upload of the same step.
    StopAndSave.on_train_batch_start = kill_at_step
    lightning_train.main()


# metrics.csv of the only run in a folder, without its measured column.
def rows(output: Path) -> list[dict[str, str]]:
    (path,) = output.glob("*/metrics.csv")
    with path.open(newline="") as file:
        return [row | {"samples_per_second": ""} for row in csv.DictReader(file)]


# Kill, resume, compare; prints the case if the curves differ.
def comes_back(case: Case, output: Path, reference: list[dict[str, str]]) -> bool:
    killed = train(case, output, "kill_campaign.py", KILL_AT=str(case.step))
    if case.origin == "cloud":
        shutil.rmtree(output)
    text = train(case, output, "lightning_train.py")
    # Invalid: the first run ended before the kill ("stopped: `max_epochs`", says Lightning), or the
    # second one began at step 0 although there was a checkpoint.
    is_invalid = "stopped: `max" in killed or (
        case.step > 1 and "training  steps 0 to" in text
    )
    is_same = rows(output) == reference and not is_invalid
    if not is_same:
        print(f"{case}: not the reference curve\n{killed}\n{text}")
    return is_same


# Whether each case comes back; two of them at a time.
def campaign(cases: list[Case]) -> dict[Case, bool]:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        place, reference = Path(folder), {}
        for ranks in {case.ranks for case in cases}:
            train(
                Case(0, ranks, 0, ""),
                place / f"reference-{ranks}",
                "lightning_train.py",
            )
            reference[ranks] = rows(place / f"reference-{ranks}")
        jobs = [(c, place / "-".join(map(str, c)), reference[c.ranks]) for c in cases]
        results = pool.map(lambda job: comes_back(*job), jobs)
        return dict(
            zip(cases, tqdm(results, "cases", len(cases), disable=None), strict=True)
        )


def main() -> int:
    """Try the cases; print a table. Returns 1 if a training did not come back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, values in EVERYTHING.items():
        options: Any = {"type": type(values[0]), "choices": values, "default": values}
        parser.add_argument(f"--{name}", nargs="+", **options)
    chosen = vars(parser.parse_args())
    results = campaign(
        [Case(*values) for values in itertools.product(*chosen.values())]
    )
    print("ranks  workers  from    came back to the reference curve")
    for ranks, workers, origin in itertools.product(*list(chosen.values())[1:]):
        members = [
            good
            for case, good in results.items()
            if case[1:] == (ranks, workers, origin)
        ]
        print(
            f"{ranks:>5}  {workers:>7}  {origin:<6}  {sum(members)} of {len(members)}"
        )
    return int(not all(results.values()))


if __name__ == "__main__":
    if step := os.environ.get("KILL_AT"):
        train_until_killed(int(step))
    else:
        sys.exit(main())
