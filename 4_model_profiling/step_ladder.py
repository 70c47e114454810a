"""Measure what each change to a training step gains, and that none of them changes the losses.

  uv run python step_ladder.py                         the rungs of ladder.yaml
  uv run python step_ladder.py --device cuda --precision bf16-mixed
  uv run python step_ladder.py --ladder mine.yaml      your own module and settings

The rungs take turns, so that whatever else the machine does meanwhile meets all of them. Prints a
table, and writes ladder.json and ladder.png to --save-dir.
"""

import argparse
import json
import os
import sys
from datetime import datetime
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import lightning as L
import torch
import yaml
from ladder_report import draw, summarise, table
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from profiled_training import fit, new_folder, options, parse, read_training
from src.config import CHAPTER
from src.device import describe_device
from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.lightning_settings import quiet
from step_timer import PARTS, StepTimer
from tqdm import tqdm

KEYS = {"model_class", "data_class", "config", "rungs", "variants"}


class Rung(NamedTuple):
    """One configuration of the training."""

    name: str
    settings: dict[str, Any]  # all of them, with those of the rungs below
    variant: bool  # by itself on top of the ladder; no rung of it


def main() -> int:
    """Read the command line, measure, report. Returns the exit code."""
    parser = options(__doc__)
    parser.set_defaults(config=None, model_class=None, data_class=None)
    add = parser.add_argument
    add("--ladder", default="ladder.yaml", help="YAML file with the rungs")
    add("--steps", type=int, default=50, help="steps of each run that count")
    add("--warmup", type=int, default=5, help="steps before them, which do not count")
    add("--epochs", type=int, default=4, help="length of the schedule of learning rates")
    add("--repeats", type=int, default=3, help="runs of each rung")
    add("--save-dir", help="new folder for the results; by default results/ladder/TIMESTAMP")
    chosen, overrides = parse(parser)
    if min(chosen.steps, chosen.repeats, chosen.epochs, chosen.warmup + 1) < 1:
        raise UserError("--steps, --repeats, --epochs, --warmup: allowed: from 1; --warmup from 0")
    if chosen.devices != 1:
        raise UserError("--devices: the ladder is measured in one process; allowed: 1")
    folder = new_folder(chosen.save_dir, "ladder")
    rungs = read_ladder(chosen)
    quiet()
    runs: list[dict[str, Any]] = []
    turns = list(product(range(chosen.repeats), rungs))
    bar = tqdm(turns, unit="run", disable=not sys.stderr.isatty())
    for _, rung in bar:
        bar.set_postfix_str(rung.name)
        runs.append(measure(rung, chosen, overrides))
    rows = summarise(rungs, runs)
    about = {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": describe_device(torch.device(runs[0]["device"])),
        "precision": chosen.precision,
    }
    print("\n".join(f"{key:<10}{value}" for key, value in about.items()))
    print(f"{chosen.steps} steps after {chosen.warmup} of warm-up, {chosen.repeats} runs of each")
    print(table(rows))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ladder.json").write_text(json.dumps(about | {"rows": rows}, indent=2))
    draw(folder / "ladder.png", rows)
    print(f"look at {os.path.relpath(folder)}: ladder.json, ladder.png")
    return 0


def read_ladder(chosen: argparse.Namespace) -> list[Rung]:
    """The rungs of a file; ``chosen`` gets what the file says and the command line does not.

    Raises UserError if the file is none of rungs.
    """
    place = Path(chosen.ladder)
    place = place if place.is_file() or place.is_absolute() else CHAPTER / place
    try:
        ladder = yaml.safe_load(place.read_text())
        if not isinstance(ladder, dict) or not ladder.get("rungs"):
            raise UserError(f"--ladder: {chosen.ladder} has no list of rungs")
        if unknown := sorted(set(ladder) - KEYS):
            allowed = ", ".join(sorted(KEYS))
            raise UserError(f"--ladder: {chosen.ladder} has a key {unknown[0]}; allowed: {allowed}")
        rungs: list[Rung] = []
        settings: dict[str, Any] = {}
        for rung in ladder["rungs"]:
            settings = settings | rung["set"]
            rungs.append(Rung(str(rung["name"]), settings, variant=False))
        for rung in ladder.get("variants", []):
            rungs.append(Rung(str(rung["name"]), settings | rung["set"], variant=True))
    except OSError as error:
        raise UserError(f"--ladder: cannot read {chosen.ladder}: {error.strerror}") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        told = " ".join(str(error).split())
        raise UserError(
            f"--ladder: {chosen.ladder}: each rung has a name, and set: with its settings ({told})"
        ) from error
    defaults = options(None)
    for name in ("config", "model_class", "data_class"):
        given = getattr(chosen, name) or ladder.get(name) or defaults.get_default(name)
        setattr(chosen, name, given)
    return rungs


class Losses(Callback):
    """Keeps the loss of each step, and does not wait for any of them."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: object
    ) -> None:
        self.kept.append(outputs["loss"].detach())


def measure(rung: Rung, chosen: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    """Train once with the settings of a rung."""
    words = [f"--{key}={word(value)}" for key, value in rung.settings.items()]
    torch.compiler.reset()  # what another rung has compiled is no help and no burden
    torch._dynamo.utils.counters.clear()
    training = read_training(chosen, [*words, *overrides])
    timer, losses = StepTimer(training.trainer["accelerator"]), Losses()
    with TemporaryDirectory() as logs:  # logging is a part of the step, what is logged no result
        trainer = fit(
            training,
            timer,
            max_steps=chosen.warmup + chosen.steps,
            max_epochs=chosen.epochs,
            enable_progress_bar=False,
            logger=CSVLogger(logs),
            callbacks=[losses],
        )
    device = trainer.strategy.root_device
    counted = timer.batches[chosen.warmup :]
    if len(counted) < chosen.steps:
        most = len(timer.batches) - chosen.warmup
        raise UserError(f"--steps: {chosen.steps} do not fit --epochs {chosen.epochs}: {most} do")
    batch_size = training.resolved["data"].get("batch_size")
    return {
        "rung": rung.name,
        "device": str(device),
        "losses": [loss.item() for loss in losses.kept],
        "first_step": timer.batches[0].total,
        "step": median(batch.total for batch in counted),
        "parts": {part: median(batch.seconds[part] for batch in counted) for part in PARTS},
        "batch_size": batch_size,
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "peak_memory": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }


def word(value: Any) -> str:
    """A setting as it stands on a command line."""
    return json.dumps(value) if isinstance(value, (bool, list, dict)) else str(value)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
