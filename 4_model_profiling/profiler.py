"""Train a few steps under each of three profilers, from the overview to single operators.

uv run python profiler.py                                     this chapter's model and data
uv run python profiler.py --profilers pytorch --steps 10
uv run python profiler.py -c mine.yaml --model-class mine.MyModule --data-class mine.MyData

simple     how long Lightning's actions take
advanced   the Python functions that each of them calls
pytorch    the operators on the processor and the GPU: a table, and a trace for a browser

A profiler takes time itself: timing_benchmark.py says how long a step takes without one.
"""

import argparse
import os
from pathlib import Path

from instruments import Training, make_parser
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    Profiler,
    PyTorchProfiler,
    SimpleProfiler,
)
from torch.profiler import schedule

from src.run.config import CHAPTER, DEFAULT_FILE
from src.run.errors import one_line_errors

NAMES = ("simple", "advanced", "pytorch")
NUM_LINES = 15  # of a report that are printed


class OperatorProfiler(PyTorchProfiler):
    """Also sorts by the time in an operator itself, without the operators that it calls."""

    # PyTorch's table can do it; Lightning lets only these through.
    AVAILABLE_SORT_KEYS = PyTorchProfiler.AVAILABLE_SORT_KEYS | {
        "self_cpu_time_total",
        "self_device_time_total",
    }


def main() -> None:
    """Read the options, and train under one profiler after the other."""
    parser = make_parser(__doc__)
    parser.add_argument("--profilers", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument(
        "--steps", type=int, default=20, help="training steps under each of them"
    )
    options, overrides = parser.parse_known_args()
    file = (options.config or [DEFAULT_FILE])[-1]
    folder = CHAPTER / "output" / "profiler" / Path(file).stem / "profiler_logs"
    for name in options.profilers:
        for old in folder.glob(f"*{name}_profiler_output*"):
            old.unlink()  # Lightning would append to it
        profile(name, options, overrides, folder)
        for report in sorted(folder.glob(f"*{name}_profiler_output*")):
            print(f"{name}: {os.path.relpath(report)}")
            if report.suffix == ".txt" and name != "advanced":  # this one is long
                show(report)
    if "pytorch" in options.profilers:
        print("look at a trace (.json): https://ui.perfetto.dev, Open trace file")


def profile(
    name: str, options: argparse.Namespace, overrides: list[str], folder: Path
) -> None:
    """Train some steps under this profiler, which writes its report to the folder."""
    training = Training(options, overrides, max_steps=options.steps)
    place = {"dirpath": folder, "filename": f"{name}_profiler_output"}
    profiler: Profiler
    if name == "simple":
        profiler = SimpleProfiler(**place)
    elif name == "advanced":
        profiler = AdvancedProfiler(**place)
    else:
        processor = "device" if training.device.type == "cuda" else "cpu"
        profiler = OperatorProfiler(
            **place,
            sort_by_key=f"self_{processor}_time_total",
            # All steps but the first two; by default only three.
            schedule=schedule(wait=1, warmup=1, active=max(1, options.steps - 2)),
        )
    training.fit(profiler)


def show(report: Path) -> None:
    """Print the first lines of a report, without its rules and most of its spaces."""
    lines = [line for line in report.read_text().splitlines() if "---" not in line]
    for line in lines[:NUM_LINES]:
        print(" ".join(line.split())[:100])


if __name__ == "__main__":
    with one_line_errors():
        main()
