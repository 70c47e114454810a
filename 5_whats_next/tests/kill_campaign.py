"""Kill a training at every step, and see whether it ends on the same curve, to the bit.

uv run python -m tests.kill_campaign      all 96 cases, in about twenty minutes

A case: SIGKILL to a tiny training as a step begins; then the same command again, with its folder
as it was left (disk), or without it (cloud).
"""

import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from pathlib import Path
from typing import Any, NamedTuple

import lightning_train
from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

from src.callbacks.cloud_upload import CloudUploadCallback
from src.callbacks.stop_and_save import StopAndSave
from src.data.loaders import PRELOADED
from src.run.config import CHAPTER
from src.run.launch import reserved_port
from tests.runs import rows

# Of two threads that look at one process, one gets no exit code (255), and start() looks at all.
ONE_AT_A_TIME = threading.Lock()
# The same curve from the checkpoint on, or from step 0; or another curve.
ENDS = ("resumed", "began again", "lost")


class Case(NamedTuple):
    """Where a training is killed, and what it comes back from."""

    step: int
    ranks: int
    workers: int
    origin: str


CASES = [
    Case(*values)
    for values in itertools.product(range(12), (1, 2), (0, 2), ("disk", "cloud"))
]


def train(case: Case, output: Path, kill: bool = False) -> str:
    """Begin or continue the case's training; returns what it says."""
    words = ["-c", "tests/campaign.yaml", f"--data.num_workers={case.workers}"]
    words += [f"--trainer.devices={case.ranks}"]
    words += [f"--trainer.output_dir={output.parent}"]
    words += [f"--trainer.run_name={output.name}"]
    # With the temporary folder's name: the cloud still has the runs of earlier campaigns.
    cloud = f"s3://embedded/checkpoints/{output.parent.name}"
    words += [f"--trainer.cloud_storage_path={cloud}"]
    log = output.with_suffix(".killed" if kill else ".log")
    kill_step = case.step if kill else None
    # Copies of a process that has imported Lightning already.
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(list(PRELOADED))
    ranks = []
    with reserved_port() as port:
        for rank in range(case.ranks):
            arguments = (words, rank, case.ranks, port, kill_step, log)
            ranks.append(forkserver.Process(target=run, args=arguments))
            with ONE_AT_A_TIME:
                ranks[-1].start()
        is_running = True
        while is_running:
            time.sleep(0.05)
            with ONE_AT_A_TIME:
                is_running = any(process.is_alive() for process in ranks)
                # The others would wait for a rank that has failed.
                if any(process.exitcode == 1 for process in ranks):
                    for process in ranks:
                        process.kill()
    # A run that ends by itself, before the kill or after an error, is no case.
    expected = -signal.SIGKILL if kill else 0
    codes = {process.exitcode for process in ranks}
    assert codes == {expected}, f"{log.read_text()}\nexit codes {codes}"
    return log.read_text()


def run(
    words: list[str],
    rank: int,
    num_ranks: int,
    port: int,
    kill_step: int | None,
    log: Path,
) -> None:
    """One rank, in a process of its own: train, or train until a step begins."""
    os.setsid()  # so that its workers can be killed, too
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    # The process that this one is a copy of may have begun in a test with a proxy, now gone.
    os.environ.pop("EMBEDDED_S3_ENDPOINT", None)
    os.chdir(CHAPTER)
    sys.argv = ["lightning_train.py", *words]
    if kill_step is not None:
        StopAndSave.on_train_batch_start = partialmethod(
            kill_at_step, kill_step=kill_step
        )
    if num_ranks > 1:
        # As src/run/launch.py does, without another import of Lightning.
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NODE_RANK": "0",
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_RANK": str(rank),
        }
        rank_zero_only.rank = rank  # was read at the import
    lightning_train.main()


def kill_at_step(
    callback: StopAndSave, trainer: Any, *arguments: Any, kill_step: int
) -> None:
    """Kill a rank as a step begins: a hook of every training, before the step's upload."""
    if trainer.global_step != kill_step:
        return
    # Step 1's checkpoint is enqueued as step 1 begins, after this hook. So from step 2 on, wait
    # until one is in the cloud.
    if kill_step > 1 and trainer.global_rank == 0:
        callbacks = trainer.callbacks
        (upload,) = [c for c in callbacks if isinstance(c, CloudUploadCallback)]
        with upload.uploader.changed:
            upload.uploader.changed.wait_for(lambda: upload.uploader.uploaded)
    os.killpg(0, signal.SIGKILL)


def end_of(case: Case, output: Path, reference: list[dict[str, str]]) -> str:
    """Kill, start again, compare; returns one of ENDS. Prints the case if it is lost."""
    killed = train(case, output, kill=True)
    if case.origin == "cloud":
        shutil.rmtree(output)
    text = train(case, output)
    begins_again = "training  steps 0 to" in text
    # On the disk there is a checkpoint from step 1 on, and in the cloud from step 2 on.
    first_step = 2 if case.origin == "cloud" else 1
    is_ignored = begins_again and case.step >= first_step
    if rows(output) != reference or is_ignored:
        print(f"{case}: not the reference curve\n{killed}\n{text}")
        return "lost"
    return "began again" if begins_again else "resumed"


def campaign(cases: list[Case]) -> dict[Case, str]:
    """How each case ends; two of them at a time."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        place = Path(folder)
        # Not killed, with each number of ranks.
        reference = {}
        for ranks in {case.ranks for case in cases}:
            output = place / f"reference-{ranks}"
            train(Case(0, ranks, 0, ""), output)
            reference[ranks] = rows(output)
        jobs = [(c, place / "-".join(map(str, c)), reference[c.ranks]) for c in cases]
        results = pool.map(lambda job: end_of(*job), jobs)
        bar = tqdm(results, "cases", len(cases), disable=None)
        return dict(zip(cases, bar, strict=True))


def main() -> int:
    """Try all cases; print a table. Returns 1 if one is lost."""
    # Read by the process that the trainings are copies of: several run at once, of a tiny model.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results = campaign(CASES)
    print("ranks  workers  from ", *(f"{end:>12}" for end in ENDS))
    for kind in sorted({case[1:] for case in CASES}):
        ends = [end for case, end in results.items() if case[1:] == kind]
        ranks, workers, origin = kind
        counts = [f"{ends.count(end):>12}" for end in ENDS]
        print(f"{ranks:>5}  {workers:>7}  {origin:<5}", *counts)
    return int("lost" in results.values())


if __name__ == "__main__":
    sys.exit(main())
