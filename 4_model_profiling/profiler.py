"""Train a few steps under each of Lightning's three profilers.

uv run python profiler.py                       this chapter's model and data
uv run python profiler.py --steps 40 --data.batch_size 64

simple     how long Lightning's actions take
advanced   the Python functions that each of them calls
pytorch    the operators on the processor and the GPU: a table, and a trace

A profiler takes time itself: timing_benchmark.py says how long a step takes without one.
"""

import os
from pathlib import Path
from typing import ClassVar

import torch
from instruments import make_parser, short_training
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    PyTorchProfiler,
    SimpleProfiler,
)
from torch.profiler import schedule

from src.run.config import CHAPTER
from src.run.errors import one_line_errors


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
            schedule=schedule(wait=options.steps - 6, warmup=1, active=4, repeat=1),
            profile_memory=True,
        ),
    ]
    words = [f"-c={options.config}", *overrides]
    for profiler in profilers:
        short_training(words, options.steps, profiler=profiler)
    for file in sorted(folder.iterdir()):
        print(os.path.relpath(file))


if __name__ == "__main__":
    with one_line_errors():
        main()
