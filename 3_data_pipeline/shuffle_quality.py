"""What does an order that respects chunks do to the shuffle, and to the loss?

  uv run python shuffle_quality.py
  uv run python shuffle_quality.py --train false       the shuffle alone, in seconds

For each order of the samples: how many requests an epoch takes; how many different blocks of the
store meet in a batch; how much the mean of a batch varies, against a batch of independent draws (1
is as good as random, 4 is the noise of batches a quarter as large); and, after trainings of the
same number of steps, the validation loss.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from src.data.chunk_stream import ChunkStream
from src.data.fast_dataset import FastDataset
from src.data.look_ahead import LookAhead
from src.data.orders import order_of
from src.data.s3_server import connect
from src.errors import UserError, one_line_errors
from tqdm import tqdm
from utils import CHAPTER, run_command

STREAM = "src.data.chunk_stream.ChunkStream"
ORDERS: dict[str, dict[str, Any]] = {
    "random": {},
    "4 streams, buffer of 4": {"streams": 4, "buffer": 4},
    "4 streams, buffer of 1": {"streams": 4, "buffer": 1},
    "1 stream, buffer of 1": {"streams": 1, "buffer": 1},
    "4 streams, 2 masks each": {"streams": 4, "buffer": 4, "repeat_augmentation": 2},
    "4 streams, 4 masks each": {"streams": 4, "buffer": 4, "repeat_augmentation": 4},
}


def make(order: dict[str, Any], arguments: dict[str, Any]) -> FastDataset:
    """The training samples, which go through an epoch in an order."""
    return (ChunkStream if order else FastDataset)("train", **arguments, **order)


def sample_means(dataset: FastDataset) -> np.ndarray:
    """The mean of the valid elements of each sample, (N,)."""
    # All windows in their own order: chunks are read about once.
    batches = [list(range(n, min(n + 64, len(dataset)))) for n in range(0, len(dataset), 64)]
    means = []
    for batch in tqdm(batches, desc="means", unit="batch", disable=None, leave=False):
        for x, _ in dataset.__getitems__(batch):
            valid = x.isfinite()
            means.append(float(x.nan_to_num().sum() / valid.sum().clamp(min=1)))  # 0 for land
    return np.array(means)


def quality(dataset: FastDataset, means: np.ndarray, batch_size: int) -> dict[str, float]:
    """Requests of an epoch, blocks in a batch, noise of a batch; of the first epoch."""
    order = order_of(dataset)(0, 0)
    batches = [order[n : n + batch_size] for n in range(0, len(order) - batch_size + 1, batch_size)]
    before = int(dataset.counts[0, 0])
    for batch in tqdm(
        LookAhead(batches, dataset),  # type: ignore[arg-type]
        total=len(batches),
        desc="epoch",
        unit="batch",
        disable=None,
        leave=False,
    ):
        dataset.__getitems__(batch)
    starts = [len({dataset.slices(index)[0].start for index in batch}) for batch in batches]
    own = np.array([means[np.array(batch) % len(means)].mean() for batch in batches])
    return {
        "requests": int(dataset.counts[0, 0]) - before,
        "blocks": float(np.mean(starts)),
        "noise": float(own.var() * batch_size / means.var()),
    }


def trained(order: dict[str, Any], config: str, epochs: int, seed: int) -> dict[str, float]:
    """Scores of a training in a process of its own. Raises UserError with what it said last."""
    arguments = {f"data.dataset.{key}": value for key, value in order.items()}
    repeats = order.get("repeat_augmentation", 1)
    if epochs % repeats:
        raise UserError(f"epochs: {epochs} is no multiple of repeat_augmentation {repeats}")
    with TemporaryDirectory() as folder:
        arguments |= {"seed_everything": seed, "trainer.max_epochs": epochs // repeats}
        arguments |= {"trainer.output_dir": folder, "trainer.wandb": "disabled"}
        command = [sys.executable, "lightning_train.py", "-c", config]
        command += [f"--data.dataset={STREAM}"] if order else []
        command += [part for key, value in arguments.items() for part in (f"--{key}", str(value))]
        done = subprocess.run(command, cwd=CHAPTER, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError((done.stderr.strip().splitlines() or ["the training failed"])[-1])
        summary = json.loads(Path(folder, "run_1", "summary.json").read_text())
        return summary["validation"]["masked autoencoder"]


def main(
    config: str = "config/config.yaml",
    orders: list[str] | None = None,
    train: bool = True,
    epochs: int = 4,
    seeds: int = 2,
) -> None:
    """Compare orders.

    Args:
        config: the training; its dataset has to be a FastDataset.
        orders: names of some of the orders; null compares all.
        train: train as well, with each order and each seed.
        epochs: of the random order; orders with several masks take as many steps.
        seeds: trainings of each order; the table shows the median and the extremes.
    """
    chosen = list(ORDERS) if orders is None else orders
    if unknown := [name for name in chosen if name not in ORDERS]:
        raise UserError(f"orders: {', '.join(unknown)}; allowed: {'; '.join(ORDERS)}")
    if min(epochs, seeds) < 1:
        raise UserError(f"epochs {epochs}, seeds {seeds}; allowed: from 1")
    connect()  # one server for all
    settings = yaml.safe_load((CHAPTER / config).read_text())["data"]
    arguments, batch_size = settings["dataset"]["init_args"], settings["batch_size"]
    means = sample_means(make({}, arguments))
    found = {name: quality(make(ORDERS[name], arguments), means, batch_size) for name in chosen}
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    turns = [(name, seed) for seed in range(seeds) for name in chosen] if train else []
    for name, seed in tqdm(turns, unit="training", disable=None):
        scores[name].append(trained(ORDERS[name], config, epochs, seed))
    print(f"{len(means)} windows in batches of {batch_size}; {seeds} trainings each")
    print(table(found, scores))


def table(found: dict[str, dict[str, float]], scores: dict[str, list[dict[str, float]]]) -> str:
    """A row for each order; of the losses the median, and from the smallest to the largest."""
    width = max(map(len, found)) + 1
    lines = [f"{'':{width}}{'requests':>10}{'blocks':>8}{'noise':>8}{'val_loss':>26}"]
    for name, values in found.items():
        row = f"{name:<{width}}{values['requests']:>10,}{values['blocks']:>8.1f}"
        row += f"{values['noise']:>8.2f}"
        if losses := [score["val_loss"] for score in scores[name]]:
            middle = f"{median(losses):.4f} ({min(losses):.4f}-{max(losses):.4f})"
            row += f"{middle:>26}"
        lines.append(row)
    return "\n".join(lines)


if __name__ == "__main__":
    with one_line_errors():
        run_command(main, __doc__)
        sys.exit()
