"""What the benchmark is made of: the memory of its processes, the YAML files, the log."""

import json
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from src.run.errors import UserError


def memory(pid: int) -> float:
    """What a process and its children have in memory, in MB."""
    total = 0.0
    with suppress(psutil.Error):  # one of them has just ended
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            if psutil.LINUX:
                # Of a page that three processes share, it counts a third.
                total += process.memory_full_info().pss / 1e6
            else:
                total += process.memory_info().rss / 1e6
    return total


def read_configurations(file: Path) -> dict[str, dict[str, Any]]:
    """Each configuration of a YAML file: the defaults, and its own keys instead of them."""
    content = yaml.safe_load(file.read_text())
    defaults = content["defaults"]
    configurations = {}
    for name, changes in content["configurations"].items():
        if unknown := (changes or {}).keys() - defaults.keys():
            raise UserError(f"{file}: {name}: unknown keys {sorted(unknown)}")
        merged = defaults | (changes or {})
        merged["dataset_args"] = defaults["dataset_args"] | merged["dataset_args"]
        # What workers have loaded in advance would count as if it had taken no time.
        prefetched = merged["num_workers"] * merged["prefetch_factor"]
        merged["machine"] = platform.node()
        merged["warmup"] = max(1, merged["warmup"], prefetched)
        configurations[name] = merged
    return configurations


def read_log(
    log: Path, configurations: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The logged turns of these configurations.

    Turns with other settings, of which the machine is one, stay in the log and do not count.
    """
    rows = map(json.loads, log.read_text().splitlines())
    return [row for row in rows if row["settings"] == configurations.get(row["name"])]
