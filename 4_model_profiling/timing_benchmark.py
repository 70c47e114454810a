"""How long does a training step take, where does the time go, and what do settings gain?

uv run python timing_benchmark.py            the rows of benchmark_configs/step.yaml
uv run python timing_benchmark.py --rows mine.yaml --data.batch_size 64

The rows take turns, so that whatever else this machine does meets all of them.
"""

import json
import math
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from count_step import count_step
from instruments import PARTS, WARMUP, StepTimer, make_parser, short_training
from lightning_train import CLASSES
from matplotlib.figure import Figure

from src.run.config import CHAPTER, parse_config
from src.run.errors import one_line_errors

# FLOP/s in float32 and in 16 bits, from the data sheets; add yours under the name that
# torch.cuda.get_device_name() has. Without sparsity, which would double the second figure.
PEAKS = {
    "NVIDIA A100-SXM4-40GB": (19.5e12, 312e12),
    "NVIDIA A100-SXM4-80GB": (19.5e12, 312e12),
    "NVIDIA H100 80GB HBM3": (67e12, 989e12),
    "NVIDIA H200": (67e12, 989e12),
}
# Okabe and Ito's colours, for colour-blind readers too.
COLORS = ["#E69F00", "#0072B2", "#56B4E9", "#009E73"]


def main() -> None:
    """Read the rows, measure in turns, print and draw."""
    parser = make_parser(__doc__, steps=50)
    default = CHAPTER / "benchmark_configs" / "step.yaml"
    parser.add_argument("--rows", default=default, help="YAML file of named settings")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each row")
    options, overrides = parser.parse_known_args()
    rows = {}
    for name, settings in yaml.safe_load(Path(options.rows).read_text()).items():
        words = [f"-c={options.config}", f"-c={json.dumps(settings)}", *overrides]
        parse_config("", CLASSES, words)  # a typo ends here, and not after minutes
        rows[name] = words

    results = []
    for _ in range(options.repeats):
        for name, words in rows.items():
            results.append({"row": name, **measure(words, options.steps)})
            print(f"{name}: {results[-1]['step']:.1f} ms", file=sys.stderr)
    runs = pd.DataFrame(results).set_index("row")
    table = summarise(runs)
    print(f"milliseconds a step; {options.repeats} turns of {options.steps} steps")
    print(table.to_string(float_format="{:.4g}".format))
    folder = CHAPTER / f"results/benchmark/{datetime.now():%Y-%m-%d_%H-%M-%S}"
    folder.mkdir(parents=True)
    runs.drop(columns="losses").to_csv(folder / "timing_results.csv")
    draw(table, folder / "batch_time_breakdown.png")
    print(f"look at {os.path.relpath(folder)}: a table and a picture")


def measure(words: list[str], steps: int) -> dict[str, Any]:
    """Train some steps: milliseconds of a step and its parts, speed, memory, MFU, losses."""
    torch.compiler.reset()  # the compiled code of another row
    timer = StepTimer()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    trainer, _ = short_training(words, WARMUP + steps, [timer])
    row: dict[str, Any] = timer.milliseconds()
    batch_size = getattr(trainer.datamodule, "batch_size", math.nan)
    row["samples/s"] = 1e3 * batch_size / row["step"]
    if timer.device.type == "cuda":
        row["GB"] = torch.cuda.max_memory_allocated() / 1e9
        if peaks := PEAKS.get(torch.cuda.get_device_name()):
            operations, _ = count_step(words)
            peak = peaks[trainer.precision != "32-true"]
            row["MFU"] = 1e3 * operations / row["step"] / peak
    row["losses"] = torch.stack(timer.losses).cpu()
    return row


def summarise(runs: pd.DataFrame) -> pd.DataFrame:
    """A line for each row: its middle turn, the range of its turns, and how its losses differ."""
    reference = runs["losses"].iloc[0]
    lines = {}
    for name in runs.index.unique():
        turns = runs.loc[[name]].sort_values("step")
        # One turn as it is, so that its parts add up.
        line = turns.iloc[len(turns) // 2].to_dict()
        difference = (line.pop("losses") / reference - 1).abs().max()
        limits = {"low": turns["step"].iloc[0], "high": turns["step"].iloc[-1]}
        lines[name] = {"step": line.pop("step"), **limits, **line}
        lines[name]["loss differs"] = difference.item()
    return pd.DataFrame(lines).T


def draw(table: pd.DataFrame, path: Path) -> None:
    """A bar for each row, divided into the parts of its step."""
    figure = Figure(figsize=(9, 1.5 + 0.5 * len(table)), layout="constrained")
    axis = figure.subplots()
    parts = table[list(PARTS)].iloc[::-1]
    parts.plot.barh(stacked=True, color=COLORS, width=0.7, legend=False, ax=axis)
    for place, name in enumerate(parts.index):
        speed = f"  {table['samples/s'][name]:.0f} samples/s"
        axis.text(table["step"][name], place, speed, va="center")
    axis.set_xlim(0, 1.3 * table["step"].max())  # room for the text
    axis.set(xlabel="milliseconds a step", title="Where the time of a step goes")
    figure.legend(loc="outside lower center", ncols=len(PARTS))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    with one_line_errors():
        main()
