"""Train the same model in five ways, and compare their losses: scaling up changes no result.

  uv run python same_curve.py                            the default model for two epochs
  uv run python same_curve.py --trainer.max_epochs 5     any setting that all five understand

Leaves all runs and same_curve.png in a new folder output/same_curve/run_N.
"""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from src.config import CHAPTER
from src.tracking import new_run_folder

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TWO = ["lightning_train.py", "--trainer.devices", "2", "--trainer.strategy"]
COMMON = ["--trainer.accelerator", "cpu", "--trainer.max_epochs", "2"]
WAYS = {
    "raw PyTorch, one process": ["pytorch_train.py"],
    "Lightning, one process": ["lightning_train.py"],
    "Lightning DDP, two processes": [*TWO, "ddp"],
    "DDP by hand, two processes": [*TORCHRUN, "pytorch_ddp_train.py"],
    "Lightning FSDP, two processes": [*TWO, "fsdp"],
}


def train(words: list[str], output: Path) -> tuple[np.ndarray, float]:
    """Train in one way: steps and losses (2, rows) from metrics.csv, and the seconds it took."""
    start = time.perf_counter()
    command = [sys.executable, *words, *COMMON, *sys.argv[1:], "--trainer.output_dir", str(output)]
    # At a terminal each training shows its own progress bar.
    shown = None if sys.stdout.isatty() else subprocess.DEVNULL
    done = subprocess.run(command, cwd=CHAPTER, stdout=shown, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(words)} ended with exit code {done.returncode}")
    seconds = time.perf_counter() - start
    with (output / "run_1" / "metrics.csv").open(newline="") as file:
        rows = [(int(r["step"]), float(r["train_loss"])) for r in csv.DictReader(file) if r["lr"]]
    return np.array(rows).T, seconds


def plot(curves: dict[str, np.ndarray], path: Path) -> None:
    """Losses above, and below how far they are from those of raw PyTorch."""
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9, 6.5), sharex=True, height_ratios=[2, 1], layout="constrained"
    )
    (_, reference), *_ = curves.values()
    for number, (name, (step, loss)) in enumerate(curves.items()):
        # Each line is thinner than the one before, which would else be hidden.
        style = {"linewidth": 9 - 2 * number, "color": f"C{number}", "label": name}
        above.plot(step, loss, **style)
        below.plot(step, np.abs(loss - reference) / reference, **style | {"linewidth": 1.5})
    above.set(ylabel="training loss", yscale="log")
    above.legend()
    below.set(xlabel="optimiser step", ylabel="relative difference\nfrom raw PyTorch")
    below.set_yscale("symlog", linthresh=1e-8, linscale=0.5)
    below.axhline(1e-5, color="0.5", linestyle=":", linewidth=1)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Train in all ways; prints a table and draws the curves."""
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        return 0
    folder = new_run_folder(CHAPTER / "output" / "same_curve")
    curves, table = {}, {}
    print(f"{'largest relative difference in':>57} {'50 steps':>9} {'all steps':>9}", flush=True)
    for number, (name, words) in enumerate(WAYS.items()):
        curves[name], seconds = train(words, folder / f"way_{number}")
        (step, loss), (_, reference) = curves[name], next(iter(curves.values()))
        apart = np.abs(loss - reference) / reference
        early, late = (float(part.max()) for part in (apart[step <= 50], apart))
        table[name] = {"seconds": seconds, "first 50 steps": early, "all steps": late}
        numbers = [f"{value:9.1e}" if value else "        0" for value in (early, late)]
        print(f"{name:<35} {seconds:6.0f} s {' ' * 12} {' '.join(numbers)}", flush=True)
    plot(curves, folder / "same_curve.png")
    (folder / "summary.json").write_text(json.dumps(table, indent=2))
    print(f"look at {os.path.relpath(folder)}: same_curve.png, and the runs")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
