"""Train the same model in chapters 0, 1, 2, 3 and 5, and compare the losses: scaling changes none.

  uv run python appendix/one_curve.py [settings for all, for example --trainer.max_epochs 5]

The last training is killed half-way, loses its folder, and goes on from the cloud. Leaves the runs
and one_curve.png in appendix/output/one_curve; about five minutes on two cores.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "appendix" / "output" / "one_curve"
SETTINGS = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=2",
    "--trainer.log_every_n_steps=1",
]
UPLOADS = ["--trainer.checkpoint_every_n_steps=50", "--trainer.upload_every_n_steps=50"]
DDP = ["--trainer.devices=2", "--trainer.strategy=ddp"]
RAW = "raw PyTorch"
KILLED = "Lightning, killed and resumed from the cloud"
WAYS = {
    RAW: ["0_setup", "pytorch_train.py"],
    "Lightning": ["1_multi_gpu", "lightning_train.py"],
    "Lightning, two processes": ["1_multi_gpu", "lightning_train.py", *DDP],
    "Lightning, windows from S3": ["2_cloud_data", "lightning_train.py"],
    "Lightning, S3 through the fast reader": ["3_data_pipeline", "lightning_train.py"],
    KILLED: ["5_whats_next", "lightning_train.py", *UPLOADS],
}
# Okabe and Ito's, which colour-blind readers tell apart.
COLOURS = ["#000000", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00"]


def train_and_kill(
    command: list[str], chapter: Path, folder: Path, last_step: int
) -> None:
    """Start a training, kill all its processes after a step, and remove its folder."""
    with subprocess.Popen(
        command, cwd=chapter, stdout=subprocess.DEVNULL, start_new_session=True
    ) as training:
        rows = 0
        while training.poll() is None and rows < last_step:
            time.sleep(0.2)
            rows = sum(
                len(path.read_text().split()) for path in folder.glob("*/metrics.csv")
            )
        if training.poll() is None:
            os.killpg(training.pid, signal.SIGKILL)
    if training.returncode != -signal.SIGKILL:
        code = training.returncode
        sys.exit(f"error: the training ended with exit code {code}, before its kill")
    shutil.rmtree(folder)


def draw(losses: dict[str, pd.Series]) -> Figure:
    """Each curve upon that of raw PyTorch, in grey; below, how far they are from it."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    rows = figure.add_gridspec(3, 3, height_ratios=[1, 1, 1.1])
    below = figure.add_subplot(rows[2, :])
    reference = losses[RAW]
    for number, (name, loss) in enumerate(losses.items()):
        colour = COLOURS[number]
        panel = figure.add_subplot(rows[number // 3, number % 3])
        panel.semilogy(reference, color="0.75", linewidth=5)
        panel.semilogy(loss, color=colour, linewidth=1)
        panel.set_title(name.replace(", ", ",\n"), fontsize=9, color=colour)
        panel.set(ylabel="" if number % 3 else "training loss")
        difference = (loss / reference - 1).abs()
        below.plot(difference, color=colour, linewidth=6 - number)
    below.set_yscale("symlog", linthresh=1e-8)
    below.set(xlabel="optimiser step", ylabel="relative difference\nfrom raw PyTorch")
    return figure


def main() -> None:
    """Train in all ways; prints a table and draws the curves."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    print(
        "largest relative difference in                50 steps all steps", flush=True
    )
    losses: dict[str, pd.Series] = {}
    for number, (name, (chapter, script, *words)) in enumerate(WAYS.items()):
        folder = OUTPUT / str(number)
        command = [sys.executable, script, *SETTINGS, *words, *sys.argv[1:]]
        command.append(f"--trainer.output_dir={folder}")
        if name == KILLED:
            # A name of its own each time: a copy of an earlier start would be resumed at once.
            command.append(f"--trainer.run_name=one_curve_{time.time_ns()}")
            train_and_kill(command, ROOT / chapter, folder, len(losses[RAW]) // 2)
            command.append("--trainer.resume_policy=must")
        # The runs' progress bars stay: they go to stderr.
        subprocess.run(
            command, cwd=ROOT / chapter, stdout=subprocess.DEVNULL, check=True
        )
        (table,) = folder.glob("*/metrics.csv")
        losses[name] = pd.read_csv(table, index_col="step")["train_loss"].dropna()
        assert losses[name].index.equals(losses[RAW].index)  # no step is missing
        difference = (losses[name] / losses[RAW] - 1).abs()
        print(
            f"{name:<45} {difference.loc[:50].max():8.1e}  {difference.max():8.1e}",
            flush=True,
        )
    draw(losses).savefig(OUTPUT / "one_curve.png", dpi=110)
    print(f"look at {OUTPUT.relative_to(ROOT)}: one_curve.png")


if __name__ == "__main__":
    main()
