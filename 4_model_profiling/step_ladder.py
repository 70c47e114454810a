"""What does each change to a training step gain, and does it leave the losses as they are?

uv run python step_ladder.py                        every rung, in turns, on this machine
uv run python step_ladder.py --precision bf16-mixed         on a GPU
"""

import json
import multiprocessing
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import pandas as pd
import torch
from instruments import build, describe, fit, new_folder, options
from lightning.pytorch.callbacks import Callback
from timing_benchmark import COLORS, save
from tqdm import tqdm

from src.errors import UserError, one_line_errors
from src.step_timer import WARMUP, StepTimer

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
        self.losses.append(trainer.callback_metrics["train_loss"])


def main() -> None:
    """Measure in turns, print the table, write it and the picture."""
    parser = options(__doc__)
    parser.set_defaults(model_class="slow_module.SlowModule")
    parser.add_argument(
        "--steps", type=int, default=50, help="steps of each run that count"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each rung")
    parser.add_argument(
        "--save-dir", help="new folder; by default results/ladder/TIMESTAMP"
    )
    chosen, overrides = parser.parse_known_args()
    folder = new_folder(chosen.save_dir, "ladder")
    rungs = dict(zip(RUNGS, accumulate(RUNGS.values()), strict=True))
    rungs |= {
        f"+ {name}": [*rungs.values()][-1] + more for name, more in VARIANTS.items()
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in rungs}
    # In turns, so that other load on the machine affects all of them.
    for name in tqdm([*rungs] * chosen.repeats, unit="run", disable=None):
        arguments = [
            *overrides,
            *rungs[name],
            f"--trainer.max_steps={WARMUP + chosen.steps}",
        ]
        # In a new process: another rung's cached memory and compiled graphs must not count.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            runs[name].append(process.submit(measure, chosen, arguments).result())
    table = summarise(runs)
    about = runs["first version"][0]["about"]
    print(f"{about}; {chosen.steps} steps, {chosen.repeats} runs of each")
    print(
        table.to_string(
            float_format="{:.2f}".format, formatters={"loss": "{:.0e}".format}
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "device": about,
        "command": sys.argv,
        "rows": json.loads(table.T.to_json()),
    }
    (folder / "ladder.json").write_text(json.dumps(content, indent=2))
    draw(table, folder)
    print(f"look at {os.path.relpath(folder)}: ladder.json, ladder.png")


def measure(chosen: Any, arguments: list[str]) -> dict[str, Any]:
    """Train some steps with the settings of a rung."""
    losses = Losses()
    with TemporaryDirectory() as run_folder:
        cli = build(chosen, arguments, run_folder, [losses])
        timer = StepTimer(cli.trainer.strategy.root_device.type)
        fit(cli, timer)
    steps = 1e3 * pd.DataFrame(timer.seconds()).drop(columns="epoch")
    if len(steps) < WARMUP + chosen.steps:
        raise UserError(
            f"the training has {len(steps)} steps only; raise --trainer.max_epochs"
        )
    return {
        "about": describe(cli.trainer, chosen.precision),
        "batch_size": getattr(cli.trainer.datamodule, "batch_size", 1),
        "losses": torch.stack(losses.losses).cpu(),
        "first s": steps["total"][0] / 1e3,
        **steps.iloc[WARMUP:].median(),
    }


def summarise(runs: dict[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """A row for each rung: milliseconds, samples per second, and how far the losses are off."""
    first, rows = runs["first version"][0], {}
    for name, turns in runs.items():
        numbers = [*COLORS, "total", "first s"]
        row = {key: statistics.median(turn[key] for turn in turns) for key in numbers}
        totals = [turn["total"] for turn in turns]
        row["low"], row["high"] = min(totals), max(totals)
        row["samples/s"] = 1e3 * turns[0]["batch_size"] / row["total"]
        row["loss"] = float("nan")  # of another batch
        if turns[0]["batch_size"] == first["batch_size"]:
            ratios = torch.stack([turn["losses"] for turn in turns]) / first["losses"]
            row["loss"] = float((ratios - 1).abs().max())
        rows[name] = row
    table = pd.DataFrame(rows).T
    table["times"] = table["samples/s"] / table["samples/s"].iloc[0]
    return table


def draw(table: pd.DataFrame, folder: Any) -> None:
    """A bar for each rung, divided into the parts of its step; per sample."""
    parts = table[list(COLORS)].div(table["samples/s"] * table["total"] / 1e3, axis=0)
    parts.index += [f" ({times:.2f}x)" for times in table["times"]]
    axes = parts.iloc[::-1].plot.barh(stacked=True, color=COLORS, figsize=(9, 4.5))
    axes.set(
        title="From a first version to a fast one", xlabel="milliseconds per sample"
    )
    axes.legend(
        ncols=len(COLORS),
        loc="upper center",
        bbox_to_anchor=(0.4, -0.15),
        frameon=False,
    )
    save(folder / "ladder.png")


if __name__ == "__main__":
    with one_line_errors():
        main()
