"""Compare configurations of a data pipeline: in turns, each in a new process, with a training step.

uv run python benchmark_datapipeline_configurations.py                        the ladder
uv run python benchmark_datapipeline_configurations.py --file benchmark_configs/dask_workers.yaml

A run that was stopped goes on, on the same machine; after a change to the code, delete its log. For
a dataset of your own, put its class into the YAML file. (The blog also calls this script
benchmark_configurations.py.)
"""

import json
import multiprocessing
import os
import pkgutil
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from slow_network import slow_network
from tqdm import tqdm
from utils import memory, read_configurations, read_log

from src.data.loaders import Loaders
from src.data.s3_server import BUCKET, connect
from src.run.config import CHAPTER, HelpFormatter
from src.run.errors import UserError, one_line_errors


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Serve batches to a training step that takes ``train_step_time`` seconds.

    Returns the seconds until the first batch, the opening of the store included; three time stamps
    for each batch: the training asks for it, gets it, is done with it; samples per second; and the
    part of the time in which the training was busy.
    """
    opened = time.perf_counter()
    kind = pkgutil.resolve_name(settings["dataset"])
    dataset = kind("train", **settings["dataset_args"])
    loaders = Loaders(
        lambda split: dataset,  # nothing is validated
        settings["batch_size"],
        settings["num_workers"],
        settings["prefetch_factor"],
    )

    steps: list[list[float]] = []
    asked = time.perf_counter()
    for _ in loaders.train_loader(lambda: 0):
        got = time.perf_counter()
        # A GPU computes, and this process is free.
        time.sleep(settings["train_step_time"])
        done = time.perf_counter()
        steps.append([asked, got, done])
        asked = done
        if len(steps) == settings["warmup"] + settings["batches"]:
            break
    measured = steps[settings["warmup"] :]
    if not measured:
        raise UserError(
            f"an epoch has {len(steps)} batches, warmup {settings['warmup']}"
        )
    # From the end of the last warm-up batch on, when the next one is asked for.
    seconds = measured[-1][2] - measured[0][0]
    waited = sum(got - asked for asked, got, _ in measured)
    return {
        "first_batch": steps[0][1] - opened,
        "steps": steps,
        "samples_per_second": len(measured) * settings["batch_size"] / seconds,
        "busy": 1 - waited / seconds,
    }


def one_turn(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure in a new process, where nothing is left of the configuration before."""
    # How many threads dask takes, in the new process and in its workers.
    os.environ["DASK_NUM_WORKERS"] = str(settings.get("dask_threads"))
    spawn = multiprocessing.get_context("spawn")
    with slow_network(settings["delay"]), ProcessPoolExecutor(1, spawn) as process:
        pid = process.submit(os.getpid).result()
        future = process.submit(measure, settings)
        peak = 0.0
        while not wait([future], timeout=0.2).done:
            peak = max(peak, memory(pid))
        return future.result() | {"memory": peak}


def main(
    file: str = "benchmark_configs/ladder.yaml",
    repeats: PositiveInt = 3,
) -> None:
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
    log.touch()
    rows = read_log(log, configurations)
    finished = {(row["name"], row["turn"]) for row in rows}

    # In turns, so that a busy machine slows all of them.
    turns = []
    for number in range(repeats):
        for name in configurations:
            if (name, number) not in finished:
                turns.append((name, number))
    for name, number in tqdm(turns, unit="turn", disable=None):
        row = {"name": name, "turn": number, "settings": configurations[name]}
        row |= one_turn(configurations[name])
        rows.append(row)
        # In one write, because a run may be interrupted here.
        with log.open("ab", buffering=0) as lines:
            lines.write(f"{json.dumps(row)}\n".encode())
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
        speeds = [row["samples_per_second"] for row in turns]
        speed = statistics.median(speeds)
        base = base or speed
        spread = f"({min(speeds):.0f}-{max(speeds):.0f})"
        busy = statistics.median(row["busy"] for row in turns)
        first_batch = statistics.median(row["first_batch"] for row in turns)
        megabytes = statistics.median(row["memory"] for row in turns)
        print(
            f"{name:<30}{speed:9.1f}{spread:>15}{speed / base:8.1f}{busy:7.0%}"
            f"{first_batch:9.1f}{megabytes:8.0f}"
        )


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
