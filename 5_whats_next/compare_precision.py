"""Compare precisions on this machine: speed, memory, and the training against float32.

uv run python compare_precision.py                   float32, bfloat16, and on a GPU float16
uv run python compare_precision.py --turns 5 --model.depth 4

The trainings, each one epoch from the same weights, take turns, so that whatever else the machine
does meets all of them. The table and the picture go to output/precision.
"""

import os
from statistics import fmean, median

import matplotlib.pyplot as plt
from jsonargparse import Namespace
from short_run import Recorder, read_options, results_folder, short_training
from src.config import choose_device
from src.errors import one_line_errors
from tqdm import tqdm

WARMUP = 5  # steps that are not timed


def train_in_turns(
    config: Namespace, turns: int
) -> tuple[dict[str, Recorder], dict[str, list[float]]]:
    """The last run of each precision, and the milliseconds of a step in each turn."""
    runs: dict[str, Recorder] = {}
    milliseconds: dict[str, list[float]] = {}
    has_gpu = choose_device(config.trainer.accelerator).type != "cpu"
    for _ in tqdm(range(turns), "turns", disable=None):
        for name in ["32-true", "bf16-mixed", *(["16-mixed"] if has_gpu else [])]:
            config.trainer.precision = name
            runs[name] = short_training(config, Recorder())
            milliseconds.setdefault(name, []).append(1000 * median(runs[name].seconds[WARMUP:]))
    return runs, milliseconds


def main() -> None:
    """Read the command line, train, report."""
    chosen, config = read_options(__doc__, {"turns": 3}, ["--trainer.max_epochs=1"])
    runs, milliseconds = train_in_turns(config, chosen.turns)
    reference, tail = runs["32-true"], len(runs["32-true"].losses) // 4
    print("precision   ms/step  (low-high)   faster  MB kept    less  last losses   validation")
    for name, run in runs.items():
        times = milliseconds[name]
        # Each turn is compared with its own float32: the machine may be slower in another one.
        ratios = [a / b for a, b in zip(milliseconds["32-true"], times, strict=True)]
        kept, most = sum(run.kept.values()), sum(reference.kept.values())
        loss = fmean(run.losses[-tail:]) / fmean(reference.losses[-tail:]) - 1
        (*_, scores), (*_, expected) = run.scores.values(), reference.scores.values()
        print(
            f"{name:<11} {median(times):7.1f}  {f'({min(times):.1f}-{max(times):.1f})':<12}"
            f"{median(ratios):6.2f}x{kept / 1e6:9.1f}{most / kept:7.2f}x{loss:+13.2%}"
            f"{scores['val_loss'] / expected['val_loss'] - 1:+13.2%}"
        )
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(7, 5), layout="constrained")
    for name, run in runs.items():
        axes[0].semilogy(run.losses, label=name)
        pairs = zip(run.losses, reference.losses, strict=True)
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
