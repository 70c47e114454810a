"""Compare configurations of a data pipeline: in turns, each in a new process, with a training step.

uv run python benchmark_datapipeline_configurations.py                        the ladder
uv run python benchmark_datapipeline_configurations.py --file benchmark_configs/dask_workers.yaml

For a dataset of your own, put its class into the YAML file. (The blog also calls this script
benchmark_configurations.py.)
"""

import gc
import multiprocessing
import os
import pkgutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import yaml
from jsonargparse import auto_cli
from matplotlib.figure import Figure
from slow_network import slow_network
from tqdm import tqdm

from src.data.loaders import Loaders
from src.data.store import OCEAN, embedded_server
from src.run.config import CHAPTER, HelpFormatter
from src.run.errors import UserError, one_line_errors

# What is measured, and how the table shows it.
COLUMNS = {
    "samples_per_second": "{:.1f}",
    "busy": "{:.0%}",  # the part of the time in which the training did not wait
    "first_batch_s": "{:.2f}",
    "memory_mb": "{:.0f}",
}


def measure(settings: dict[str, Any]) -> dict[str, float]:
    """Serve batches to a training step that takes ``train_step_time`` seconds.

    Returns:
        Seconds until the first batch, the opening of the store included; samples per second; the
        part of the time in which the training was busy; megabytes of memory.
    """
    gc.freeze()  # as lightning_train.py does
    opened = time.perf_counter()
    kind = pkgutil.resolve_name(settings["dataset"])
    dataset = kind("train", **settings["dataset_args"])
    dataset.test_period = None
    loaders = Loaders(
        lambda split: dataset,  # nothing is validated
        settings["batch_size"],
        settings["num_workers"],
        settings["prefetch_factor"],
    )
    # What workers have loaded in advance would count as if it had taken no time.
    prefetched = settings["num_workers"] * settings["prefetch_factor"]
    warmup = max(1, settings["warmup"], prefetched)

    times = []  # when each batch was asked for, when it came
    asked = opened
    batches = iter(loaders.train_loader(lambda: 0))
    for _ in batches:
        times.append((asked, time.perf_counter()))
        # A GPU computes, and this process is free.
        time.sleep(settings["train_step_time"])
        asked = time.perf_counter()
        if len(times) > warmup and asked - times[warmup][0] > settings["seconds"]:
            break
    measured = times[warmup:]
    if not measured:
        raise UserError(f"an epoch has {len(times)} batches, warmup {warmup}")
    seconds = asked - measured[0][0]
    waited = sum(came - start for start, came in measured)
    return {
        "first_batch_s": times[0][1] - opened,
        "samples_per_second": len(measured) * settings["batch_size"] / seconds,
        "busy": 1 - waited / seconds,
        "memory_mb": memory(),
    }


def memory() -> float:
    """What this process and its children have in memory, in MB."""
    root = psutil.Process()
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        about = process.memory_full_info()
        # Of a page that three processes share, Linux's pss counts a third.
        total += getattr(about, "pss", about.rss) / 1e6
    return total


def one_turn(settings: dict[str, Any]) -> dict[str, float]:
    """Measure in a new process, where nothing is left of the configuration before."""
    # How many threads dask takes, in the new process and in its workers.
    os.environ["DASK_NUM_WORKERS"] = str(settings["dask_threads"])
    spawn = multiprocessing.get_context("spawn")
    with slow_network(settings["delay"]), ProcessPoolExecutor(1, spawn) as process:
        return process.submit(measure, settings).result()


def read_configurations(file: Path) -> dict[str, dict[str, Any]]:
    """Each configuration of a YAML file: the defaults, and its own keys instead of them."""
    content = yaml.safe_load(file.read_text())
    defaults = content["defaults"]
    configurations = {}
    for name, changes in content["configurations"].items():
        merged = defaults | (changes or {})
        if unknown := merged.keys() - defaults.keys():
            raise UserError(f"{file}: {name}: unknown keys {sorted(unknown)}")
        merged["dataset_args"] = defaults["dataset_args"] | merged["dataset_args"]
        configurations[name] = merged
    return configurations


def main(file: str = "benchmark_configs/ladder.yaml", repeats: int = 3) -> None:
    """Take turns, print the medians, and draw them.

    Args:
        file: the configurations.
        repeats: turns of each configuration.
    """
    configurations = read_configurations(Path(file))
    embedded_server(OCEAN)  # here, so that its memory is not that of a configuration
    # In turns, so that a busy machine slows all of them.
    rows = []
    for name in tqdm([*configurations] * repeats, unit="turn", disable=None):
        rows.append({"name": name, **one_turn(configurations[name])})
    turns = pd.DataFrame(rows)
    folder = CHAPTER / "benchmark_logs"
    folder.mkdir(exist_ok=True)
    turns.to_csv(folder / f"{Path(file).stem}.csv", index=False)
    show(turns, list(configurations), folder / f"{Path(file).stem}.png")


def show(turns: pd.DataFrame, names: list[str], picture: Path) -> None:
    """Print the medians of each configuration, and draw them, with a point for each turn."""
    medians = turns.groupby("name")[list(COLUMNS)].median().loc[names]
    formatters = {name: form.format for name, form in COLUMNS.items()}
    print(medians.to_string(formatters=formatters, index_names=False))
    figure = Figure(figsize=(14, 1.5 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(COLUMNS), sharey=True)
    for axis, column in zip(axes, COLUMNS, strict=True):
        axis.plot(medians[column], names, "o")
        axis.plot(turns[column], turns["name"], ".", color="0.4")
        axis.set_title(column)
        axis.grid()
    axes[0].invert_yaxis()  # the first one at the top
    axes[0].set_xscale("log")  # they differ by orders of magnitude
    figure.savefig(picture)
    print(f"look at {picture.parent.name}: {picture.name}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
