"""Experiment first, train later: short trainings with other settings, side by side.

uv run python experiments.py experiments/sizes.yaml
uv run python experiments.py experiments/schedules.yaml --optimizer.lr 2e-3    settings for all

What has been trained with the same settings before is kept: a stopped command goes on.
"""

import argparse
import gc
import json
import os
import shutil
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from lightning_train import CLASSES, build_training
from matplotlib.figure import Figure
from tqdm import tqdm

from src.callbacks import Report
from src.run.checkpoint import atomic_write
from src.run.config import CHAPTER, parse_config
from src.run.errors import UserError, one_line_errors


def main() -> None:
    """Read the file, train what is not there yet, print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="YAML file of named settings")
    default = CHAPTER / "config" / "config.yaml"
    text = "YAML file; if there are several, the last one counts"
    parser.add_argument("-c", "--config", default=default, help=text)
    options, overrides = parser.parse_known_args()
    rows = {}
    for name, settings in yaml.safe_load(options.file.read_text()).items():
        files = [f"-c={options.config}", f"-c={json.dumps(settings)}"]
        rows[name] = [*files, *overrides]
        parse_config("", CLASSES, rows[name])  # a typo ends here

    results = CHAPTER / "output/experiments" / options.file.stem
    names = tqdm(rows, disable=None)
    table = [train(rows[name], results / name) for name in names]
    frame = pd.DataFrame(table, index=list(rows))
    print(frame.to_string(float_format="{:.4g}".format, na_rep=""))
    draw(results, list(rows))
    print(f"look at {os.path.relpath(results)}: curves.png")


def train(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Train on one device, or read what an earlier command has found.

    Args:
        arguments: words of lightning_train.py's command line.
        folder: gets config.yaml, metrics.csv and, at the end, row.json.

    Returns:
        A row of the table.
    """
    config, resolved = parse_config("", CLASSES, arguments)
    row_file = folder / "row.json"
    if row_file.exists() and (folder / "config.yaml").read_text() == resolved:
        return json.loads(row_file.read_text())
    shutil.rmtree(folder, ignore_errors=True)  # of other settings, or stopped
    folder.mkdir(parents=True)
    config.trainer.devices = config.trainer.num_nodes = 1
    gc.collect()  # the training before may still fill the GPU
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()

    start = time.perf_counter()
    row: dict[str, Any] = {}
    report = Report("disabled", resolved)
    with redirect_stdout(None):
        trainer, module, data = build_training(
            config,
            folder,
            [report],
            max_steps=config.trainer.max_steps,
            enable_checkpointing=False,  # without a best one, Report scores nothing
            enable_model_summary=False,
        )
        try:
            trainer.fit(module, data)
        # Such as a NaN: the other trainings go on.
        except (UserError, torch.OutOfMemoryError) as error:
            row["error"] = str(error)
    row["seconds"] = time.perf_counter() - start
    if torch.cuda.is_available():
        row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    if report.rows:
        last = pd.DataFrame(report.rows).ffill().iloc[-1]
        row = last.drop(["epoch", "lr"], errors="ignore").to_dict() | row
    if "error" not in row:  # what has failed is tried again by the next command
        with atomic_write(row_file) as file:
            file.write(json.dumps(row).encode())
    return row


def draw(results: Path, names: list[str]) -> None:
    """The learning rates, and the losses of training and validation."""
    figure = Figure(figsize=(8, 8), layout="constrained")
    rate, loss, val_loss = figure.subplots(3, sharex=True)
    for name in names:
        path = results / name / "metrics.csv"
        if not path.read_text().strip():
            continue  # it failed before its first row
        metrics = pd.read_csv(path, index_col="step")
        if "lr" in metrics:  # a short one may have a validation alone
            rate.plot(metrics["lr"].dropna(), label=name)
            # The mean of five logged losses: a single batch says little.
            means = metrics["train_loss"].dropna().rolling(5, min_periods=1).mean()
            loss.semilogy(means)
        if "val_loss" in metrics:
            val_loss.plot(metrics["val_loss"].dropna(), "o-")
    rate.set(ylabel="learning rate", title=f"Short trainings: {results.name}")
    loss.set(ylabel="training loss")
    val_loss.set(ylabel="validation loss", xlabel="step")
    figure.legend(loc="outside lower center")
    figure.savefig(results / "curves.png")


if __name__ == "__main__":
    with one_line_errors():
        main()
