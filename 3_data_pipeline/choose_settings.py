"""Find loader settings that keep the model busy on this machine; write a train config with them.

  uv run python choose_settings.py                  the default run's data and model
  uv run python choose_settings.py --delay 30ms     the same, with the store far away
  uv run python choose_settings.py --config config/cube.yaml --train_step_time 0.05
  uv run python lightning_train.py -c output/recommended.yaml

It measures the config as it is. Then, round by round, all settings that are one step away from the
best so far run in turns with it, each in a process of its own. One that costs more has to be faster
by more than the repeats differ, and by 2 %; one with fewer workers or a smaller cache is taken
unless it is slower by 2 %. What is not faster in its first run is not repeated, and a model that
does not wait gets nothing more. Samples and their order stay the same, and so does the curve.
Measured is one process with the whole batch; runs are short, so a cache is worth more later on.
"""

import copy
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import psutil
import yaml
from benchmark_datapipeline_configurations import summarise, table
from benchmark_file import Configuration, check_step_time
from benchmark_one import LOADER
from settings_search import Bench, Settings, search, searched, verdict
from src.config import TrainerSettings, parse_config
from src.data.s3_server import connect
from src.errors import UserError, one_line_errors
from utils import CHAPTER, PACKAGES, check_delay, run_command

WARMUP = 10  # batches, in which a loader that is too slow uses up what it had ready


def read_base(written: Any, path: Path) -> Configuration:
    """What a train script would make of the sections model and data, as a benchmark has it."""
    if not isinstance(written, dict) or not isinstance(written.get("data"), dict):
        raise UserError(f"config: {path} has no section data; allowed: such as config/config.yaml")
    sections = {name: written[name] for name in ("model", "data") if name in written}
    resolved = yaml.safe_load(parse_config("", ["--config", json.dumps(sections)])[1])
    data, dataset = resolved["data"], resolved["data"]["dataset"]
    dataset = {"class_path": dataset} if isinstance(dataset, str) else dataset  # a function
    arguments = dataset.get("init_args") or {}
    base = {"dataset": dataset["class_path"], "dataset_args": arguments, "model": resolved["model"]}
    return base | {key: data[key] for key in LOADER}


def recommended(written: dict[str, Any], base: Configuration, changed: Settings) -> dict[str, Any]:
    """The train config with these settings."""
    config = copy.deepcopy(written)
    data = config["data"]
    for key, value in changed.items():
        if key in LOADER:
            data[key] = value
            continue
        dataset = data["dataset"] if isinstance(data.get("dataset"), dict) else {}
        dataset = {"class_path": base["dataset"]} | dataset
        data["dataset"] = dataset | {"init_args": (dataset.get("init_args") or {}) | {key: value}}
    return config


class Dumper(yaml.SafeDumper):
    """Lists of numbers on one line, as the configs have them."""

    def one_line(self, data: list[Any]) -> yaml.Node:
        flow = not any(isinstance(value, list | dict) for value in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


Dumper.add_representer(list, Dumper.one_line)


def dump(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, width=100)


def write(path: Path, text: str) -> None:
    """All of it or nothing."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def header(about: dict[str, Any], config: str, changed: Settings) -> str:
    """Where the settings come from: they hold for this machine only."""
    versions = ", ".join(f"{name} {about[name]}" for name in ("python", *PACKAGES))
    return (
        f"# Measured on {about['date'][:10]}; on another machine, measure again.\n"
        f"# {shlex.join(['uv', 'run', 'python', 'choose_settings.py', *sys.argv[1:]])}\n"
        f"# {about['device']}, {about['cores']} cores, {about['memory_gb']} GB; {versions}\n"
        f"# {config} with {', '.join(f'{k} {v}' for k, v in changed.items()) or 'no changes'}\n"
    )


def main(
    config: str = "config/config.yaml",
    output: str = "output/recommended.yaml",
    overwrite: bool = False,
    train_step_time: float | str = "real",
    delay: str = "0ms",
    batches: int = 40,
    repeats: int = 3,
    timeout: float = 300.0,
    fresh: bool = False,
) -> None:
    """Measure, decide, and write a train config.

    Args:
        config: train config whose data section is looked at; config.yaml has what it leaves out.
        output: the new train config; the runs go to the same name with .jsonl.
        overwrite: replace a file that is there.
        train_step_time: seconds that stand for the model's step; real trains the config's model.
        delay: before each request to the embedded server, such as 30ms.
        batches: batches that are measured in a run, after a warm-up.
        repeats: runs of each settings in a round.
        timeout: seconds after which a run has failed.
        fresh: forget the runs of an earlier search, instead of going on with them.
    """
    if repeats < 2 or batches < 1 or timeout <= 0:
        given = f"{repeats}, {batches}, {timeout:g}"
        raise UserError(f"repeats, batches, timeout: {given}; allowed: from 2, from 1, above 0")
    check_delay(delay)
    check_step_time(train_step_time)
    source, path = CHAPTER / config, CHAPTER / output
    if path.exists() and not overwrite:
        raise UserError(f"output: {path} is there; --overwrite true replaces it")
    try:
        written = yaml.safe_load(source.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"config: {source}: {' '.join(str(error).split())}") from error
    base = read_base(written, source)
    base |= {"train_step_time": train_step_time, "delay": delay}
    base |= {"warmup": WARMUP, "batches": batches}
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".jsonl")
    if fresh:
        log.unlink(missing_ok=True)
    connect()  # one server for all runs
    bench = Bench(base, searched(base), log, timeout)
    rounds = search(bench, repeats, psutil.virtual_memory().available / 2e6)
    bench.bar.close()
    changed = bench.changes(rounds[-1][0])
    new = recommended(written, base, changed)
    write(path, header(bench.about, config, changed) + dump(new))
    print(table(summarise(bench.tried, bench.runs)), verdict(rounds), sep="\n")
    print(dump({"data": new["data"]}))
    own = set(vars(TrainerSettings())) | {"devices", "num_nodes", "strategy"}
    program = "lightning_train.py"
    if set(new.get("trainer") or {}) - own:  # Lightning's own arguments
        program = "-m lightning_trainer fit"
    print(f"uv run python {program} -c {os.path.relpath(path)}")


if __name__ == "__main__":
    with one_line_errors():
        run_command(main, __doc__)
        sys.exit()
