"""Train the same model in four ways and compare their losses: scaling up changes no result.

  uv run python same_curve.py [settings that all four have, for example --trainer.max_epochs 5]

Leaves all runs and same_curve.png in a new folder output/same_curve/run_N.
"""

import subprocess
import sys

import pandas as pd
from matplotlib.figure import Figure

from src.config import CHAPTER
from src.tracking import new_run_folder

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DDP = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
SETTINGS = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=2",
    "--trainer.log_every_n_steps=1",
]
WAYS = {
    "raw PyTorch, one process": ["pytorch_train.py"],
    "Lightning, one process": ["lightning_train.py"],
    "Lightning DDP, two processes": ["lightning_train.py", *DDP],
    "DDP by hand, two processes": [*TORCHRUN, "pytorch_ddp_train.py"],
}


def main() -> None:
    """Train in all ways; prints a table and draws the curves."""
    folder = new_run_folder(CHAPTER / "output" / "same_curve")
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    loss_axis, difference_axis = figure.subplots(2, sharex=True, height_ratios=[2, 1])
    reference = None
    print("largest relative difference in      50 steps all steps", flush=True)
    for number, (name, arguments) in enumerate(WAYS.items()):
        output = f"--trainer.output_dir={folder}/{number}"
        command = [sys.executable, *arguments, *SETTINGS, *sys.argv[1:], output]
        # The runs' progress bars stay: they go to stderr.
        subprocess.run(command, cwd=CHAPTER, stdout=subprocess.DEVNULL, check=True)
        metrics = pd.read_csv(f"{folder}/{number}/run_1/metrics.csv", index_col="step")
        loss = metrics["train_loss"].dropna()  # the rows of a validation have none
        reference = loss if reference is None else reference
        difference = (loss / reference - 1).abs()
        print(
            f"{name:<35} {difference.loc[:50].max():8.1e}  {difference.max():8.1e}",
            flush=True,
        )
        # Each line is thinner than the one before, which it would otherwise hide.
        loss_axis.semilogy(loss, linewidth=9 - 2.5 * number, label=name)
        difference_axis.plot(difference)
    loss_axis.set(ylabel="training loss")
    loss_axis.legend()
    difference_axis.set(
        xlabel="optimiser step", ylabel="relative difference\nfrom raw PyTorch"
    )
    difference_axis.set_yscale("symlog", linthresh=1e-8)
    figure.savefig(folder / "same_curve.png", dpi=110)
    print(f"look at {folder.relative_to(CHAPTER)}: same_curve.png")


if __name__ == "__main__":
    main()
