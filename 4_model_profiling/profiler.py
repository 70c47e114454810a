"""Train a few steps under each of Lightning's three profilers.

uv run python profiler.py                       this chapter's model and data
uv run python profiler.py --steps 40 --data.batch_size 64

simple     how long Lightning's actions take
advanced   the Python functions that each of them calls
pytorch    the operators on the processor and the GPU: a table, and a trace

A profiler takes time itself: timing_benchmark.py says how long a step takes without one.
"""

import os
import re
from pathlib import Path
from typing import ClassVar

import torch
from instruments import WARMUP, make_parser, short_training
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    PyTorchProfiler,
    SimpleProfiler,
)
from torch.profiler import schedule

from src.run.config import CHAPTER
from src.run.errors import one_line_errors

# What is printed of each report: this many lines, from the one with this text on.
NUM_LINES = 14
SHOWN = {"simple": "Action", "advanced": "Strategy.training_step", "pytorch": "Name"}


class OperatorProfiler(PyTorchProfiler):
    """Sorts by the time in an operator itself, without those that it calls."""

    # PyTorch's table can do it; Lightning lets only its own keys through.
    AVAILABLE_SORT_KEYS: ClassVar = {"self_cpu_time_total", "self_cuda_time_total"}


def main() -> None:
    """Train under one profiler after the other."""
    options, overrides = make_parser(__doc__, steps=20).parse_known_args()
    name = Path(options.config).stem
    folder = CHAPTER / "output" / "profiler" / name / "profiler_logs"
    for old in folder.glob("*"):
        old.unlink()  # Lightning would append to them
    device = "cuda" if torch.cuda.is_available() else "cpu"
    profilers = [
        SimpleProfiler(folder, "simple_profiler_output"),
        AdvancedProfiler(folder, "advanced_profiler_output"),
        OperatorProfiler(
            folder,
            "pytorch_profiler_output",
            sort_by_key=f"self_{device}_time_total",
            # Some steps after the first ones: a trace of all would be slow to open.
            schedule=schedule(wait=WARMUP, warmup=1, active=4, repeat=1),
            profile_memory=True,
        ),
    ]
    words = [f"-c={options.config}", *overrides]
    for profiler in profilers:
        short_training(words, options.steps, profiler=profiler)
    for kind, first in SHOWN.items():
        show(folder / f"fit-{kind}_profiler_output.txt", first)
    print(f"open {os.path.relpath(folder)}/*.json with https://ui.perfetto.dev")


def show(report: Path, first: str) -> None:
    """Print a report's lines from the one with ``first`` on, without rules and most spaces."""
    lines = [line for line in report.read_text().splitlines() if "---" not in line]
    start = next(number for number, line in enumerate(lines) if first in line)
    print(os.path.relpath(report))
    for line in lines[start : start + NUM_LINES]:
        print("  ", re.sub(r"\s{2,}", "  ", line.strip())[:140])


if __name__ == "__main__":
    with one_line_errors():
        main()
