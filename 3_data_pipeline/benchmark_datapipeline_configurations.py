"""Measure how well a data loader keeps a model busy, for many settings of it.

  uv run python benchmark_datapipeline_configurations.py
  uv run python benchmark_datapipeline_configurations.py --train_step_time 0
  uv run python benchmark_datapipeline_configurations.py --file benchmark_configs/workers.yaml \
      --dataset my_module.MyDataset --dataset_args '{"folder": "/data"}'

A file lists configurations, or a grid of values; benchmark_configs/ladder.yaml explains it. Each
one runs in a process of its own, in turns, several times; the table shows medians with the smallest
and the largest value. Everything goes to benchmark_logs/, one line of JSON for each run: an
interrupted benchmark goes on with what is missing there. A configuration that fails is reported,
and the others go on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmark_file import Configuration, fingerprint, read_configurations
from src.data.s3_server import connect
from src.errors import UserError, one_line_errors
from tqdm import tqdm
from utils import CHAPTER, machine, run_command, same_machine, slow_network, spread

COLUMNS = [  # title, key in a result, factor, format
    ("wait ms", "wait", 1e3, ".1f"),
    ("busy %", "busy", 100, ".0f"),
    ("samples/s", "samples_per_second", 1, ".0f"),
    ("first s", "seconds_to_first_batch", 1, ".2f"),
    ("requests", "requests_per_sample", 1, ".2f"),
    ("kB", "kilobytes_per_sample", 1, ".0f"),
    ("CPU s", "cpu_seconds", 1, ".1f"),
    ("memory MB", "peak_memory_mb", 1, ".0f"),
]

ENDS = ("median", "min", "max")
SPREAD = {"wait", "samples_per_second"}  # of these the table shows smallest and largest value, too


def read_log(path: Path) -> list[dict[str, Any]]:
    """The runs of a log; a line that a kill has cut short is none."""
    if not path.exists():
        return []
    runs = []
    for line in path.read_text().splitlines():
        try:
            runs.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return runs


def run_once(configuration: Configuration, timeout: float) -> dict[str, Any]:
    """The result of a process, or what it said last."""
    with (
        slow_network(configuration["delay"]) as variables,
        subprocess.Popen(
            [sys.executable, "benchmark_one.py"],
            cwd=CHAPTER,
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            printed, said = process.communicate(json.dumps(configuration), timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"error": f"not done in {timeout:g} s"}
        finally:
            process.kill()
    if process.returncode:
        return {"error": (said.strip().splitlines() or [f"exit code {process.returncode}"])[-1]}
    return json.loads(printed.splitlines()[-1])


def missing_runs(
    configurations: dict[str, Configuration], repeats: int, runs: list[dict[str, Any]]
) -> Iterator[tuple[str, int]]:
    """In turns: what changes on the machine meanwhile then changes all of them."""
    done = {(run["fingerprint"], run["repeat"]) for run in runs if "error" not in run}
    for repeat in range(repeats):
        for name, configuration in configurations.items():
            if (fingerprint(configuration), repeat) not in done:
                yield name, repeat


def summarise(
    configurations: dict[str, Configuration], runs: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Median, smallest and largest value of each column, or the error, by name."""
    found: dict[str, dict[str, Any]] = {}
    for name, configuration in configurations.items():
        mark = fingerprint(configuration)
        own = [run for run in runs if run["fingerprint"] == mark and "error" not in run]
        if not own:
            errors = [run["error"] for run in runs if run["fingerprint"] == mark]
            found[name] = {"error": errors[-1] if errors else "did not run"}
            continue
        for run in own:
            run["wait"] = sum(run["waits"]) / len(run["waits"])
        found[name] = {key: spread([run[key] for run in own]) for _, key, _, _ in COLUMNS}
        found[name]["runs"] = len(own)
    return found


def table(summary: dict[str, dict[str, Any]]) -> str:
    """A row for each configuration: medians; where it matters, from smallest to largest value."""
    width = max(map(len, summary)) + 1
    rows = {name: cells(values) for name, values in summary.items() if "error" not in values}
    titles = [title for title, *_ in COLUMNS]
    widths = [max(map(len, column)) + 2 for column in zip(titles, *rows.values(), strict=True)]
    lines = [" " * width + "".join(map(str.rjust, titles, widths))]
    for name, values in summary.items():
        found = "".join(map(str.rjust, rows[name], widths)) if name in rows else ""
        problem = f"  failed: {values['error']}" if "error" in values else ""
        lines.append(f"{name:<{width}}{found}{problem}")
    return "\n".join(lines)


def cells(values: dict[str, Any]) -> list[str]:
    """A row of the table."""
    found = []
    for _, key, factor, style in COLUMNS:
        middle, low, high = (format(values[key][end] * factor, style) for end in ENDS)
        found.append(f"{middle} ({low}-{high})" if key in SPREAD and low != high else middle)
    return found


def main(
    file: str = "benchmark_configs/ladder.yaml",
    dataset: str | None = None,
    dataset_args: dict[str, Any] | None = None,
    train_step_time: float | str | None = None,
    delay: str | None = None,
    batches: int | None = None,
    repeats: int = 3,
    timeout: float = 300.0,
    log: str | None = None,
    fresh: bool = False,
) -> int:
    """Measure the configurations of a file.

    Args:
        file: the configurations.
        dataset: import path of another Dataset for all of them; replace it by yours.
        dataset_args: its arguments.
        train_step_time: seconds that stand for the model's step; real trains the chapter's model.
        delay: before each request to the embedded server, such as 30ms.
        batches: batches that are measured in a run, after the warm-up.
        repeats: runs of each configuration.
        timeout: seconds after which a run has failed.
        log: where the runs go; null takes benchmark_logs/ and the name of the file.
        fresh: begin the log anew, instead of going on with it.
    """
    if repeats < 1 or (batches is not None and batches < 1) or timeout <= 0:
        raise UserError(f"repeats, batches, timeout: {repeats}, {batches}, {timeout}; allowed: > 0")
    chosen = {
        "dataset": dataset,
        "dataset_args": dataset_args if dataset_args or not dataset else {},
        "train_step_time": train_step_time,
        "delay": delay,
        "batches": batches,
    }
    changes = {key: value for key, value in chosen.items() if value is not None}
    place = Path(file) if Path(file).is_absolute() else CHAPTER / file
    configurations = read_configurations(place, changes)
    path = CHAPTER / (log or f"benchmark_logs/{place.stem}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        path.unlink(missing_ok=True)
    about = machine()
    connect()  # one server for all runs
    # A log may come from another machine, or from before an update.
    runs = [run for run in read_log(path) if same_machine(run["machine"], about)]
    todo, broken = list(missing_runs(configurations, repeats, runs)), set()
    for name, repeat in tqdm(todo, unit="run", disable=None):
        if name in broken:
            continue
        configuration = configurations[name]
        result = run_once(configuration, timeout)
        line = {"name": name, "repeat": repeat, "fingerprint": fingerprint(configuration)}
        line |= {"configuration": configuration, "machine": about} | result
        with path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        runs.append(line)
        if "error" in result:
            broken.add(name)
    summary = summarise(configurations, runs)
    print(table(summary))
    return int(any("error" in values for values in summary.values()))


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(run_command(main, __doc__))
