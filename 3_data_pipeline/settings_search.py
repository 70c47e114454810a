"""The search behind choose_settings.py: step by step, from the settings as they are to better ones.

Round by round, all settings that are one step away from the best so far run in turns with it. What
costs more has to be faster by more than the repeats differ, and by 2 %; what costs less is taken
unless it is slower by 2 %.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from benchmark_datapipeline_configurations import read_log, run_once
from benchmark_file import Configuration, fingerprint
from benchmark_one import LOADER
from src.data.cloud_errors import CloudError
from src.data.fast_dataset import FastDataset
from src.data.orders import order_of
from src.device import choose_device, describe_device
from src.errors import UserError
from tqdm import tqdm
from utils import import_path, machine, same_machine

Run = dict[str, Any]
Settings = dict[str, Any]
STEPS: dict[str, tuple[float, ...]] = {  # values to try; what comes first costs more than the rest
    "num_workers": (0, 1, 2, 4, 8, 16, 32, 64),
    "cache_mb": (0, 64, 256, 1024, 4096),
    "batches_ahead": (1, 2, 4, 8, 16),
    "concurrency": (16, 64, 128, 256),
    "prefetch_factor": (2, 4, 8),
    "pin_memory": (False, True),
    "packed": (False, True),
}
ALSO_LESS = ("num_workers", "cache_mb")  # take so much memory that less of them is worth a try
TOGETHER = {"batches_ahead", "concurrency"}  # one may be worth something when the other has grown
CORES = os.cpu_count() or 1
LEAST = 0.02  # a difference that matters


def searched(base: Configuration) -> Settings:
    """The settings that matter for this machine and this dataset, with the values they have."""
    found = {key: base[key] for key in ("num_workers", "prefetch_factor")}
    if torch.cuda.is_available():
        found["pin_memory"] = base["pin_memory"]
    kind = import_path(base["dataset"])
    if isinstance(kind, type) and issubclass(kind, FastDataset):
        found |= {key: value for key, value in base["dataset_args"].items() if key in STEPS}
        if not isinstance(found.get("packed", False), bool) or not same_when_packed(kind, base):
            found.pop("packed", None)
    return {key: found[key] for key in STEPS if key in found}


def same_when_packed(kind: type[FastDataset], base: Configuration) -> bool:
    """Whether the store has a packed copy, with the same bits in the first batch."""
    own = base["dataset_args"] | {"batches_ahead": 0}
    try:
        plain, packed = (kind("train", **own | {"packed": choice}) for choice in (False, True))
        indices = order_of(plain)(0, 0)[: base["batch_size"]]
        pairs = zip(plain.__getitems__(indices), packed.__getitems__(indices), strict=True)
        return all(a.numpy().tobytes() == b.numpy().tobytes() for (a, _), (b, _) in pairs)
    except CloudError:
        return False


def configure(base: Configuration, settings: Settings) -> Configuration:
    """A configuration with some settings."""
    loader = {key: value for key, value in settings.items() if key in LOADER}
    arguments = {key: value for key, value in settings.items() if key not in LOADER}
    return base | loader | {"dataset_args": base["dataset_args"] | arguments}


def rivals(best: Settings, peak_mb: float, memory_mb: float) -> Iterator[tuple[str, Settings]]:
    """What is one step away from the best, by key, if it fits into ``memory_mb``."""
    workers = best["num_workers"]
    each_mb = peak_mb / (1 + workers)  # a worker has the same libraries as the main process
    for key, now in best.items():
        if key == ("batches_ahead" if workers else "prefetch_factor"):
            continue  # of no effect
        higher = [value for value in STEPS[key] if value > now]
        values = higher[:1] + [v for v in STEPS[key] if v < now and key in ALSO_LESS][-1:]
        if key == "num_workers" and not workers:  # one may be too few to show what they are worth
            values += [value for value in higher[1:] if value <= CORES][-1:]
        for rival in (best | {key: value} for value in values):
            number = rival["num_workers"]
            needed = number * each_mb + max(1, number) * rival.get("cache_mb", 0)
            if cost(rival) < cost(best) or (number <= 4 * CORES and needed <= memory_mb):
                yield key, rival


def cost(settings: Settings) -> tuple[float, ...]:
    return tuple(settings.values())


def middle(runs: list[Run], key: str = "samples_per_second") -> float:
    return median(run[key] for run in runs)


def noise(runs: list[Run]) -> float:
    """By how much the repeats differ."""
    speeds = [run["samples_per_second"] for run in runs]
    return (max(speeds) - min(speeds)) / median(speeds)


def gain(own: list[Run], runs: list[Run]) -> float:
    """How much faster than the best's ``own`` runs."""
    return -1.0 if any("error" in run for run in runs) else middle(runs) / middle(own) - 1


def stays_in(own: list[Run], runs: list[Run], cheaper: bool) -> bool:
    """Whether another run of a rival is worth its time: no gain is larger than what is waited."""
    if not runs:
        return cheaper or 1 / middle(own, "busy") - 1 > max(LEAST, noise(own))
    return gain(own, runs) >= (-LEAST if cheaper else 0)


def wins(own: list[Run], runs: list[Run], cheaper: bool) -> bool:
    """Whether a rival replaces the best."""
    if len(runs) < len(own) or gain(own, runs) == -1:
        return False
    return gain(own, runs) > (-LEAST if cheaper else max(LEAST, noise(own), noise(runs)))


class Bench:
    """Measures; ``log`` has the runs, also those of a search that was interrupted."""

    def __init__(self, base: Configuration, start: Settings, log: Path, timeout: float) -> None:
        self.base, self.start, self.log, self.timeout = base, start, log, timeout
        self.about = machine() | {"device": describe_device(choose_device("auto"))}
        self.runs = [run for run in read_log(log) if same_machine(run["machine"], self.about)]
        self.tried: dict[str, Configuration] = {}
        self.bar = tqdm(unit="run", disable=None, leave=False)

    def changes(self, settings: Settings) -> Settings:
        return {key: value for key, value in settings.items() if value != self.start[key]}

    def run(self, settings: Settings, turn: int, repeat: int) -> Run:
        """One process, unless the log has its result."""
        changed = [f"{key} {value}" for key, value in self.changes(settings).items()]
        configuration = configure(self.base, settings)
        name = ", ".join(changed) or "as configured"
        self.tried[name] = configuration
        self.bar.set_postfix_str(name)
        self.bar.update()
        mark = {"fingerprint": fingerprint(configuration), "turn": turn, "repeat": repeat}
        for run in self.runs:
            if "error" not in run and mark.items() <= run.items():
                return run
        line = mark | {"configuration": configuration, "machine": self.about}
        self.runs.append(line | run_once(configuration, self.timeout))
        with self.log.open("a") as lines:
            lines.write(json.dumps(self.runs[-1]) + "\n")
        return self.runs[-1]


def search(bench: Bench, repeats: int, memory_mb: float) -> list[tuple[Settings, list[Run]]]:
    """The best settings of each round, with their runs in it; the last are the recommended ones."""
    rounds: list[tuple[Settings, list[Run]]] = []
    best: Settings | None = bench.start
    known, lost = [bench.start], set[str]()
    while best:
        own: list[Run] = []
        rounds.append((best, own))
        others: list[tuple[str, Settings, list[Run]]] = []
        for repeat in range(repeats):
            own.append(bench.run(best, len(rounds), repeat))
            if problem := own[-1].get("error"):
                raise UserError(f"config: its loader cannot be measured: {problem}")
            if not repeat:
                near = rivals(best, own[0]["peak_memory_mb"], memory_mb)
                others = [(key, r, []) for key, r in near if r not in known and key not in lost]
                known += [rival for _, rival, _ in others]
            for _, rival, runs in others:
                if len(runs) == repeat and stays_in(own, runs, cost(rival) < cost(best)):
                    runs.append(bench.run(rival, len(rounds), repeat))
        won = [other for other in others if wins(own, other[2], cost(other[1]) < cost(best))]
        # A better loader leaves less to gain: what is of no use now will be of none later.
        lost |= {key for key, *_ in others} - {key for key, *_ in won} - TOGETHER
        top = max((middle(runs) for *_, runs in won), default=0.0)
        equal = [rival for _, rival, runs in won if middle(runs) >= (1 - LEAST) * top]
        best = min(equal, key=cost, default=None)
    return rounds


def verdict(rounds: list[tuple[Settings, list[Run]]]) -> str:
    """What the model does now, what it would do, and why that is all."""
    (start, before), (best, after) = rounds[0], rounds[-1]
    busy = f"busy {middle(before, 'busy'):.1%}, {middle(before):.0f} samples/s as configured"
    if best != start:
        return f"{busy}; {middle(after, 'busy'):.1%}, {middle(after):.0f} samples/s as recommended"
    if 1 / middle(before, "busy") - 1 <= LEAST:
        return f"{busy}; nothing to gain: the model does not wait"
    return f"{busy}; nothing to gain: no other settings were faster by more than the repeats differ"
