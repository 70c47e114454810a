"""Train a few batches under three profilers, from the overview to each single operator.

  uv run python profiler.py                                all three, this chapter's model
  uv run python profiler.py --profilers pytorch --batches 8
  uv run python profiler.py -c mine.yaml --model-class mymodel.MyModule \
      --data-class mydata.MyDataModule                     your own

simple     how long Lightning's actions take, which add up to the training
advanced   every Python function that they call, with its number of calls (cProfile)
pytorch    every operator on processor and GPU: a table, and a trace to look at in a browser

The reports go to output/profiler/CONFIG/profiler_logs, where an earlier run of the same config is
replaced. A profiler takes time itself: timing_benchmark.py says how long a step takes without.
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    Profiler,
    PyTorchProfiler,
    SimpleProfiler,
)
from profiled_training import fit, options, parse, read_training
from src.config import CHAPTER
from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.lightning_settings import quiet
from trace_summary import summarise_trace

UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
SKIPPED = 3  # batches before the trace begins: the first ones are not like the others


def make_profiler(name: str, folder: Path, batches: int) -> Profiler:
    """A profiler that writes to ``folder`` a report of that name."""
    place: dict[str, Any] = {"dirpath": folder, "filename": f"{name}_profiler_output"}
    if name == "simple":
        return SimpleProfiler(**place)
    if name == "advanced":
        return AdvancedProfiler(**place, line_count_restriction=30)
    schedule = torch.profiler.schedule(wait=SKIPPED - 1, warmup=1, active=batches, repeat=1)
    return PyTorchProfiler(
        **place, row_limit=100, schedule=schedule, record_shapes=True, profile_memory=True
    )


NAMES = ("simple", "advanced", "pytorch")


def main() -> int:
    """Read the command line and run the profilers, one after the other. Returns the exit code."""
    parser = options(__doc__)
    add = parser.add_argument
    add("--profilers", nargs="+", default=list(NAMES), choices=NAMES, help="which ones")
    add("--batches", type=int, default=20, help="batches under each profiler")
    chosen, overrides = parse(parser)
    if chosen.batches < 1:
        raise UserError(f"--batches: {chosen.batches}; allowed: from 1")
    quiet()
    folder = CHAPTER / "output" / "profiler" / Path(chosen.config).stem / "profiler_logs"
    if first := os.environ.get("LOCAL_RANK", "0") == "0":
        read_training(chosen, overrides)  # what does not fit is told before old reports are gone
        folder.mkdir(parents=True, exist_ok=True)
    for name in chosen.profilers:
        if first:
            remove_reports(folder, name)
        run(name, folder, chosen, overrides)
        if first:
            tell(name, folder)
    return 0


def remove_reports(folder: Path, name: str) -> None:
    """Delete the reports of an earlier run: Lightning would append to them."""
    for path in folder.glob(f"*{name}_profiler_output*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)


def run(name: str, folder: Path, chosen: argparse.Namespace, overrides: list[str]) -> None:
    """Train under one profiler; Lightning writes its report at the end."""
    # The trace is written by the batch after its last one.
    extra = SKIPPED + 1 if name == "pytorch" else 0
    fit(
        read_training(chosen, overrides),
        make_profiler(name, folder, chosen.batches),
        max_epochs=1,
        limit_train_batches=chosen.batches + extra,
        enable_progress_bar=sys.stderr.isatty(),
        logger=False,
    )


def tell(name: str, folder: Path) -> None:
    """Print where the report is, and the most important lines of it."""
    for path in sorted(folder.glob(f"*{name}_profiler_output*")):
        print(f"{name}: {os.path.relpath(path)}")
        if name == "simple":
            print("\n".join(path.read_text().splitlines()[:20]))
        if name == "advanced":
            print(training_step(path.read_text()))
        if name == "pytorch" and path.suffix == ".txt":
            print(allocations(path.read_text()))
        if path.name.endswith(".pt.trace.json"):
            print(summarise_trace(path))
            print("to look at it: https://ui.perfetto.dev, Open trace file (or chrome://tracing)")


def training_step(report: str, most: int = 9) -> str:
    """The functions of the training step that take the longest, from the advanced report."""
    _, _, found = report.partition(".training_step\n")
    lines = [line for line in found.splitlines() if line.strip()]
    return "\n".join([f"training_step:{lines[0]}", *lines[3 : 4 + most]]) if lines else ""


def allocations(report: str, most: int = 5) -> str:
    """The operators that allocate the most, from the table of PyTorch's profiler."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in report.splitlines()]
    header = next((row for row in rows if row[0] == "Name"), [])
    kind = "Self CUDA Mem" if "Self CUDA Mem" in header else "Self CPU Mem"
    if kind not in header:
        return ""
    table = [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]
    operators = [row for row in table if row["Name"].startswith("aten::")]

    def size(row: dict[str, str]) -> float:
        number, unit = row[kind].split()
        return float(number) * UNITS[unit]

    lines = [f"{'allocated':>12}{'calls':>8}  name"]
    for row in sorted(filter(size, operators), key=size, reverse=True)[:most]:
        lines.append(f"{row[kind]:>12}{row['# of Calls']:>8}  {row['Name']}")
    return "\n".join(lines)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
