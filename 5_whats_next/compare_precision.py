"""Compare precisions on this machine: speed, memory, and the training against float32.

uv run python compare_precision.py                   float32, bfloat16, and on a GPU float16
uv run python compare_precision.py --model.depth 4   and other settings of lightning_train.py

The trainings, each one epoch from the same weights, take turns, so that whatever else the machine
does meets all of them. The table and the picture go to output/precision. A file's max_epochs does
not count; give --trainer.max_epochs.
"""

import os
import sys
from statistics import fmean, median

import matplotlib.pyplot as plt
from lightning_train import CLASSES
from short_run import Recorder, results_folder, short_training
from tqdm import tqdm

from src.run.config import choose_device, parse_config
from src.run.errors import one_line_errors

TURNS = 3


def main() -> None:
    """Read the command line, train in turns, report."""
    arguments = ["--trainer.max_epochs=1", *sys.argv[1:]]
    config, _ = parse_config(__doc__, arguments, *CLASSES)
    runs: dict[str, Recorder] = {}  # the last one in each precision
    milliseconds: dict[str, list[float]] = {"32-true": [], "bf16-mixed": []}
    if choose_device(config.trainer.accelerator).type != "cpu":
        milliseconds["16-mixed"] = []
    for _ in tqdm(range(TURNS), "turns", disable=None):
        for name, times in milliseconds.items():
            config.trainer.precision = name
            runs[name] = short_training(config, Recorder())
            # The first steps warm up.
            times.append(1000 * median(runs[name].seconds[5:]))
    print_table(runs, milliseconds)
    draw(runs)


def print_table(
    runs: dict[str, Recorder], milliseconds: dict[str, list[float]]
) -> None:
    """Speed and memory; losses of the last quarter and validation, against float32."""
    reference = runs["32-true"]
    tail = len(reference.losses) // 4
    last_step = max(reference.scores)  # with a validation; the same one in each
    print(
        "precision   ms/step  (low-high)   faster  MB kept    less  last losses   validation"
    )
    for name, run in runs.items():
        times = milliseconds[name]
        # Each turn is compared with its own float32: the machine may be slower in another one.
        ratios = [a / b for a, b in zip(milliseconds["32-true"], times, strict=True)]
        saved = sum(run.saved_bytes.values())
        most = sum(reference.saved_bytes.values())
        loss = fmean(run.losses[-tail:]) / fmean(reference.losses[-tail:]) - 1
        val_loss = run.scores[last_step]["val_loss"]
        expected = reference.scores[last_step]["val_loss"]
        print(
            f"{name:<11} {median(times):7.1f}  {f'({min(times):.1f}-{max(times):.1f})':<12}"
            f"{median(ratios):6.2f}x{saved / 1e6:9.1f}{most / saved:7.2f}x{loss:+13.2%}"
            f"{val_loss / expected - 1:+13.2%}"
        )


def draw(runs: dict[str, Recorder]) -> None:
    """The losses, and how they differ from those of float32."""
    reference = runs["32-true"].losses
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(7, 5), layout="constrained")
    for name, run in runs.items():
        axes[0].semilogy(run.losses, label=name)
        pairs = zip(run.losses, reference, strict=True)
        axes[1].plot([100 * (a / b - 1) for a, b in pairs])
    axes[0].set(title="One training in each precision", ylabel="training loss")
    axes[0].legend()
    axes[1].set(xlabel="step", ylabel="difference from 32-true (%)")
    folder = results_folder("precision")
    figure.savefig(folder / "curves.png", dpi=150)
    print(f"look at {os.path.relpath(folder)}: curves.png")


if __name__ == "__main__":
    with one_line_errors():
        main()
