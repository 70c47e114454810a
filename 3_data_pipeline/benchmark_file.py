"""The configurations of a benchmark: a YAML file that lists them, or a grid of values."""

import hashlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import yaml
from src.errors import UserError
from utils import check_delay

Configuration = dict[str, Any]
KEYS = {
    *("dataset", "dataset_args", "batch_size", "num_workers", "prefetch_factor", "model"),
    *("persistent_workers", "multiprocessing_context", "pin_memory"),
    *("train_step_time", "batches", "warmup", "delay"),
}
ARGUMENT = "dataset_args."  # begins the name of a dataset's argument in a grid


def read_configurations(path: Path, changes: Configuration) -> dict[str, Configuration]:
    """Names and configurations of a file, defaults filled in, with ``changes`` in all of them."""
    try:
        written = yaml.safe_load(path.read_text())
        defaults, named = dict(written["defaults"]), dict(written.get("configurations") or {})
        grid = dict(written.get("grid") or {})
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"file: {path} is no list of configurations: {error}") from error
    if grid:
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            arguments = {k.partition(".")[2]: chosen.pop(k) for k in grid if k.startswith(ARGUMENT)}
            short = (key.removeprefix(ARGUMENT) for key in grid)
            name = ", ".join(f"{key} {value}" for key, value in zip(short, values, strict=True))
            named[name] = chosen | {"dataset_args": arguments}
    found = {}
    for name, own in named.items():
        own = own or {}
        merged = {"model": {}, "delay": "0ms"} | defaults | own | changes
        if "dataset" not in changes:
            parts = [section.get("dataset_args", {}) for section in (defaults, own, changes)]
            merged["dataset_args"] = parts[0] | parts[1] | parts[2]
        if unknown := set(merged) - KEYS:
            raise UserError(
                f"file: {name} has {', '.join(sorted(unknown))}; allowed: {', '.join(sorted(KEYS))}"
            )
        check_delay(merged["delay"])
        check_step_time(merged["train_step_time"])
        found[name] = merged
    if not found:
        raise UserError(f"file: {path} has neither configurations nor a grid")
    return found


def check_step_time(value: Any) -> None:
    """Raise UserError for what is neither seconds nor the model."""
    if value != "real" and not (isinstance(value, int | float) and 0 <= value < math.inf):
        raise UserError(f"train_step_time: {value!r}; allowed: real, or seconds from 0")


def fingerprint(configuration: Configuration) -> str:
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:16]
