"""Train a few steps under each of three profilers, from the overview to single operators.

uv run python profiler.py                                     this chapter's model and data
uv run python profiler.py --profilers pytorch --steps 10
uv run python profiler.py -c mine.yaml --model-class mine.MyModule --data-class mine.MyData

simple     how long Lightning's actions take
advanced   the Python functions that each of them calls
pytorch    the operators on the processor and the GPU: a table, and a trace for a browser

A profiler takes time itself: timing_benchmark.py says how long a step takes without one.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from instruments import build, fit, options
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    PyTorchProfiler,
    SimpleProfiler,
)

from src.config import CHAPTER
from src.errors import one_line_errors

PROFILERS = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}


def main() -> None:
    """Read the options, and train under one profiler after the other."""
    parser = options(__doc__)
    parser.add_argument(
        "--profilers", nargs="+", default=[*PROFILERS], choices=[*PROFILERS]
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="training steps under each of them"
    )
    chosen, overrides = parser.parse_known_args()
    overrides += [f"--trainer.max_steps={chosen.steps}"]
    folder = (
        CHAPTER / "output" / "profiler" / Path(chosen.config).stem / "profiler_logs"
    )
    for name in chosen.profilers:
        with TemporaryDirectory() as run_folder:
            cli = build(chosen, overrides, run_folder, [])
            for old in folder.glob(f"*{name}_profiler_output*"):
                old.unlink()  # Lightning would append to it
            fit(
                cli, PROFILERS[name](dirpath=folder, filename=f"{name}_profiler_output")
            )
        for report in sorted(folder.glob(f"*{name}_profiler_output*")):
            print(f"{name}: {os.path.relpath(report)}")
            if report.suffix == ".txt" and name != "advanced":
                # The advanced one is long.
                lines = [
                    line
                    for line in report.read_text().splitlines()
                    if "---" not in line
                ]
                print(*(" ".join(line.split())[:100] for line in lines[:15]), sep="\n")
    print("look at a trace (.json): https://ui.perfetto.dev, Open trace file")


if __name__ == "__main__":
    with one_line_errors():
        main()
