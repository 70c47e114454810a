"""Train the same model in chapters 0, 1, 2, 3 and 5, and compare the losses: scaling changes none.

  uv run python appendix/one_curve.py [settings for all, for example --trainer.max_epochs 5]

The last training is killed half-way and loses its folder; the same command goes on from the cloud.
Leaves the runs and one_curve.png in appendix/output/one_curve; four to seven minutes on two cores.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "appendix" / "output" / "one_curve"
SETTINGS = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=2",
    "--trainer.log_every_n_steps=1",
]
DDP = ["--trainer.devices=2", "--trainer.strategy=ddp"]
UPLOADS = ["--trainer.checkpoint_every_n_steps=50", "--trainer.upload_every_n_steps=50"]
# Of its own each time: a training goes on with the one of an earlier start.
NAME = f"--trainer.run_name=curve_{os.getpid()}"
RAW = "raw PyTorch"
KILLED = "Lightning, killed and resumed from the cloud"
WAYS = {
    RAW: ["0_setup", "pytorch_train.py"],
    "Lightning": ["1_multi_gpu", "lightning_train.py"],
    "Lightning, two processes": ["1_multi_gpu", "lightning_train.py", *DDP],
    "Lightning, windows from S3": ["2_cloud_data", "lightning_train.py"],
    "Lightning, S3 through the fast reader": ["3_data_pipeline", "lightning_train.py"],
    KILLED: ["5_whats_next", "lightning_train.py", *UPLOADS, NAME],
}


def losses(folder: Path) -> pd.Series:
    """The training loss of each step so far of the only run in this folder."""
    for table in folder.glob("*/metrics.csv"):
        with suppress(pd.errors.EmptyDataError):  # it has no row yet
            return pd.read_csv(table, index_col="step")["train_loss"].dropna()
    return pd.Series()


def train(name: str, folder: Path, kill_after: int) -> pd.Series:
    """The losses of one way. One of them is killed after a step, and begins again without disk."""
    chapter, *words = WAYS[name]
    command = [sys.executable, *words, *SETTINGS, *sys.argv[1:]]
    command.append(f"--trainer.output_dir={folder}")
    options: dict = {"cwd": ROOT / chapter, "stdout": subprocess.DEVNULL}
    if name == KILLED:
        training = subprocess.Popen(command, start_new_session=True, **options)
        while len(losses(folder)) < kill_after:
            assert training.poll() is None  # it has not ended before
            time.sleep(0.2)
        os.killpg(training.pid, signal.SIGKILL)
        training.wait()
        shutil.rmtree(folder)
    subprocess.run(command, check=True, **options)  # its progress bar stays, on stderr
    return losses(folder)


def main() -> None:
    """Train in all ways; prints a table and draws the curve and the differences below it."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    print(f"{'largest relative difference in':45} 50 steps  all steps", flush=True)
    figure, (curve, below) = plt.subplots(2, sharex=True, figsize=(9, 6))
    reference = pd.Series()
    for number, name in enumerate(WAYS):
        loss = train(name, OUTPUT / str(number), len(reference) // 2)
        if name == RAW:
            reference = loss
        assert loss.index.equals(reference.index)  # no step is missing
        difference = (loss / reference - 1).abs()
        # The first ones are broader, so that lines at the same place can be told apart.
        width = 0.5 + len(WAYS) - number
        curve.semilogy(loss, label=name, linewidth=width)
        below.plot(difference)
        largest = f"{difference[:50].max():8.1e}   {difference.max():8.1e}"
        print(f"{name:45} {largest}", flush=True)
    curve.set_ylabel("training loss")
    curve.legend(fontsize=8)
    below.set_yscale("symlog", linthresh=1e-8)
    below.set(xlabel="optimiser step", ylabel="relative difference\nfrom raw PyTorch")
    below.set_ylim(bottom=0)
    figure.savefig(OUTPUT / "one_curve.png", dpi=110, bbox_inches="tight")
    print(f"look at {OUTPUT.relative_to(ROOT)}: one_curve.png")


if __name__ == "__main__":
    main()
