"""Compare configurations of a data pipeline: in turns, each in a new process, with a training step.

uv run python benchmark_datapipeline_configurations.py                        the ladder
uv run python benchmark_datapipeline_configurations.py --file benchmark_configs/dask_workers.yaml

A run that was stopped goes on. For a dataset of your own, put its class into the YAML file. (The
blog also calls this script benchmark_configurations.py.)
"""

import json
import multiprocessing
import os
import pkgutil
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from slow_network import slow_network
from torch.utils.data import DataLoader
from tqdm import tqdm
from utils import Timed, collate, memory, read_configurations

from src.config import CHAPTER, HelpFormatter
from src.data.fast_dataset import LookAhead
from src.data.loaders import Loaders
from src.data.s3_server import BUCKET, connect
from src.errors import UserError, one_line_errors
from src.reproducibility import ResumableBatches


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Serve batches to a training step that takes ``train_step_time`` seconds."""
    # Five time stamps for each batch: loading starts, loading ends, the training asks for it, gets
    # it, is done with it. The first batch counts from the opening of the store on.
    opened = time.perf_counter()
    dataset = pkgutil.resolve_name(settings["dataset"])(
        "train", **settings["dataset_args"]
    )
    workers = settings["num_workers"]
    # For its order and options only; nothing is validated, so one dataset serves as both splits.
    loaders = Loaders(lambda split: dataset, settings["batch_size"], workers)
    batches: Any = ResumableBatches(**loaders.batch_arguments(lambda: 0))
    timed = Timed(dataset, settings.get("dask_threads"))
    if hasattr(dataset, "prefetch") and not workers:
        batches = LookAhead(batches, timed)
    keys = [
        "pin_memory",
        *(["prefetch_factor", "persistent_workers"] if workers else []),
    ]
    options = loaders.options() | {key: settings[key] for key in keys}
    steps: list[list[float]] = []
    asked = time.perf_counter()
    for start, end, _ in DataLoader(
        timed, batch_sampler=batches, collate_fn=collate, **options
    ):
        got = time.perf_counter()
        # A GPU computes, and this process is free.
        time.sleep(settings["train_step_time"])
        done = time.perf_counter()
        steps.append([start, end, asked, got, done])
        asked = done
        if len(steps) == settings["warmup"] + settings["batches"]:
            break
    return {"first_batch": steps[0][3] - opened, "steps": steps}


def summarise(settings: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Samples per second, and the part of the time in which the training was busy."""
    # The end of the last warm-up batch starts the clock.
    steps = result["steps"][settings["warmup"] - 1 :]
    seconds = steps[-1][4] - steps[0][4]
    waited = sum(got - asked for _, _, asked, got, _ in steps[1:])
    speed = (len(steps) - 1) * settings["batch_size"] / seconds
    return {"samples_per_second": speed, "busy": 1 - waited / seconds}


def one_turn(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure in a new process, where nothing is left of the configuration before."""
    network = slow_network(settings["delay"]) if settings["delay"] else nullcontext()
    with (
        network,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):
        pid, peak = process.submit(os.getpid).result(), 0.0
        future = process.submit(measure, settings)
        while not wait([future], timeout=0.2).done:
            peak = max(peak, memory(pid))
        result = future.result()
    return result | summarise(settings, result) | {"memory": peak}


def main(file: str = "benchmark_configs/ladder.yaml", repeats: PositiveInt = 3) -> None:
    """Take turns, log each of them, print the medians.

    Args:
        file: the configurations.
        repeats: turns of each configuration.
    """
    configurations = read_configurations(Path(file))
    if any(BUCKET in str(settings) for settings in configurations.values()):
        connect()  # here, so that the server's memory is not that of a configuration
    log = CHAPTER / "benchmark_logs" / f"{Path(file).stem}.jsonl"
    log.parent.mkdir(exist_ok=True)
    rows = (
        [json.loads(line) for line in log.read_text().splitlines()]
        if log.exists()
        else []
    )
    rows = [row for row in rows if configurations.get(row["name"]) == row["settings"]]
    # Without the rows of configurations that have changed, also for the pictures.
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    # In turns, so that a busy machine slows all of them.
    turns = [(name, number) for number in range(repeats) for name in configurations]
    finished = {(row["name"], row["turn"]) for row in rows}
    for name, number in tqdm(
        [t for t in turns if t not in finished], unit="turn", disable=None
    ):
        row = {"name": name, "turn": number, "settings": configurations[name]}
        try:
            row |= one_turn(configurations[name])
        except Exception as error:  # the others can still be measured
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        rows.append(row)
        # In one write, because a run may be interrupted here.
        with log.open("ab", buffering=0) as lines:
            lines.write(f"{json.dumps(row)}\n".encode())
    if not rows:
        raise UserError(f"{file}: none of its configurations could be measured")
    show(list(configurations), rows)
    print(f"all turns: {log.relative_to(CHAPTER)}; plot_benchmark_runs.py draws them")


def show(names: list[str], rows: list[dict[str, Any]]) -> None:
    """Medians, and the lowest and the highest turn; ``times`` compares with the first one."""
    print(
        f"{'configuration':<30}samples/s     (low-high)   times   busy  first s      MB"
    )
    base = None
    for name in names:
        turns = [row for row in rows if row["name"] == name]
        if not turns:
            continue
        speeds = [row["samples_per_second"] for row in turns]
        keys = ("samples_per_second", "busy", "first_batch", "memory")
        speed, busy, first, memory = (
            statistics.median(row[k] for row in turns) for k in keys
        )
        base = base or speed
        spread = f"({min(speeds):.0f}-{max(speeds):.0f})"
        row = f"{name:<30}{speed:9.1f}{spread:>15}{speed / base:8.1f}"
        print(row + f"{busy:7.0%}{first:9.1f}{memory:8.0f}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
