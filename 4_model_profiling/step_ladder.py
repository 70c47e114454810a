"""What does each change to a training step gain, and does it leave the losses as they are?

uv run python step_ladder.py                        every rung, in turns, on this machine
uv run python step_ladder.py --precision bf16-mixed         on a GPU
"""

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import torch
from instruments import Training, make_parser, new_folder
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure
from timing_benchmark import COLORS, milliseconds, save
from tqdm import tqdm

from src.data.loaders import PRELOADED
from src.run.errors import UserError, one_line_errors
from src.run.step_timer import WARMUP, StepTimer

# Each rung adds its settings to those of the rungs before it.
RUNGS = {
    # Logging every step also means the check for finite numbers, which waits, in every step.
    "first version": ["--trainer.log_every_n_steps=1"],
    "masks of a batch at once": ["--model.batched_masks=true"],
    "memory is not filled": ["--model.fill_memory=false"],
    "fused attention": ["--model.fused_attention=true"],
    "nothing waits": ["--model.waits=false", "--trainer.log_every_n_steps=10"],
    "fused AdamW": ["--optimizer.fused=true"],
    "torch.compile": ["--model.compile=true"],
}
# Not rungs: each is added by itself to the last one.
VARIANTS = {
    "a batch of 64": ["--data.batch_size=64"],
    "4 micro-batches": ["--model.micro_batches=4"],
}


class Losses(Callback):
    """Keeps the loss of each step, and waits for none of them."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Keep it where it is."""
        self.losses.append(trainer.callback_metrics["train_loss"])


def main() -> None:
    """Measure in turns, print the table, write it and the picture."""
    parser = make_parser(__doc__)
    parser.set_defaults(model_class="slow_module.SlowModule")
    parser.add_argument(
        "--steps", type=int, default=50, help="steps of each run that count"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each rung")
    parser.add_argument(
        "--save-dir", help="new folder; by default results/ladder/TIMESTAMP"
    )
    options, overrides = parser.parse_known_args()
    folder = new_folder(options.save_dir, "ladder")

    rungs: dict[str, list[str]] = {}
    so_far: list[str] = []
    for name, more in RUNGS.items():
        so_far = so_far + more
        rungs[name] = so_far
    for name, more in VARIANTS.items():
        rungs[f"+ {name}"] = so_far + more

    # Forked from a process that has imported Lightning. A forked process cannot use Apple's GPUs.
    is_linux = sys.platform == "linux"
    processes = multiprocessing.get_context("forkserver" if is_linux else "spawn")
    processes.set_forkserver_preload(list(PRELOADED))
    # In turns, so that other load on the machine affects all of them.
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in rungs}
    for name in tqdm(list(rungs) * options.repeats, unit="run", disable=None):
        # In a new process: another rung's cached memory and compiled graphs must not count.
        with ProcessPoolExecutor(1, processes) as process:
            run = process.submit(measure, options, [*overrides, *rungs[name]])
            runs[name].append(run.result())

    table = summarise(runs)
    about = runs["first version"][0]["about"]
    print(f"{about}; {options.steps} steps, {options.repeats} runs of each")
    shown = {"loss": "{:.0e}".format}
    print(table.to_string(formatters=shown, float_format="{:.2f}".format))
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "measured": about,
        "command": sys.argv,
        "rows": json.loads(table.T.to_json()),
    }
    (folder / "ladder.json").write_text(json.dumps(content, indent=2))
    draw(table, folder)
    print(f"look at {os.path.relpath(folder)}: ladder.json, ladder.png")


def measure(options: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    """Train some steps with the settings of a rung."""
    losses = Losses()
    num_steps = WARMUP + options.steps
    # As many epochs as the steps need: each has a step at least. Their warmup would be long.
    words = ["--optimizer.warmup_fraction=0", *overrides]
    words.append(f"--trainer.max_epochs={num_steps}")
    training = Training(options, words, [losses], max_steps=num_steps)
    if training.trainer.world_size > 1:  # another rank would begin the whole ladder
        raise UserError(
            "step_ladder.py measures one device: leave out --trainer.devices"
        )
    timer = StepTimer(training.device.type)
    training.fit(timer)
    steps = milliseconds(timer)
    return {
        "about": training.describe(),
        "batch_size": training.batch_size,
        "losses": torch.stack(losses.losses).cpu(),
        "first s": steps["total"].iloc[0] / 1e3,
        **steps.iloc[WARMUP:].mean(),
    }


def summarise(runs: dict[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """A row for each rung: milliseconds, samples per second, and how far the losses are off."""
    first = runs["first version"][0]
    rows = {}
    for name, turns in runs.items():
        # One turn's columns, so that the parts add up to the total: the turn with the median total.
        middle = sorted(turns, key=lambda turn: turn["total"])[len(turns) // 2]
        row = {key: middle[key] for key in [*COLORS, "total"]}
        # Later turns find compiled graphs on the disk.
        row["first s"] = turns[0]["first s"]
        totals = [turn["total"] for turn in turns]
        row["low"] = min(totals)
        row["high"] = max(totals)
        row["samples/s"] = 1e3 * turns[0]["batch_size"] / row["total"]
        row["loss"] = float("nan")  # of another batch
        if turns[0]["batch_size"] == first["batch_size"]:
            losses = torch.stack([turn["losses"] for turn in turns])
            row["loss"] = float((losses / first["losses"] - 1).abs().max())
        rows[name] = row
    table = pd.DataFrame(rows).T
    table["times"] = table["samples/s"] / table["samples/s"].iloc[0]
    return table


def draw(table: pd.DataFrame, folder: Path) -> None:
    """A bar for each rung, divided into the parts of its step; per sample."""
    samples = table["samples/s"] * table["total"] / 1e3  # of a step
    parts = table[list(COLORS)].div(samples, axis=0)
    parts.index += [f" ({times:.2f}x)" for times in table["times"]]
    figure = Figure(figsize=(9, 4.5))
    axis = figure.subplots()
    parts.iloc[::-1].plot.barh(stacked=True, color=COLORS, ax=axis)
    axis.set(
        title="From a first version to a fast one", xlabel="milliseconds per sample"
    )
    axis.legend(ncols=len(COLORS), loc="upper center", bbox_to_anchor=(0.4, -0.15))
    save(figure, folder / "ladder.png")


if __name__ == "__main__":
    with one_line_errors():
        main()
