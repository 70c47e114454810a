"""Where does the time of a training step go: data, copies, forward, backward, the rest?

  uv run python timing_benchmark.py                         this chapter's model and data
  uv run python timing_benchmark.py -c config/cli_config.yaml --epochs 1 --data.batch_size 64
  uv run python timing_benchmark.py --devices 2             each rank, and the one that is last
  uv run python timing_benchmark.py -c mine.yaml --model-class mymodel.MyModule \
      --data-class mydata.MyDataModule                      your own

Trains, and times every batch on the device that does the work. Prints a table and a verdict, and
writes timing_summary.yaml, timing_results.csv, benchmark_config.yaml and three pictures.
"""

import os
import sys
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist
import yaml
from lightning.pytorch.loggers import CSVLogger
from profiled_training import fit, new_folder, options, parse, read_training
from src.device import describe_device
from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.lightning_settings import quiet
from step_timer import Batch, StepTimer
from timing_plots import draw
from timing_report import report, summarise, write_table


def main() -> int:
    """Read the command line, train, report. Returns the exit code."""
    parser = options(__doc__)
    add = parser.add_argument
    add("--epochs", type=int, default=2, help="passes over the training batches")
    add("--batches", type=int, default=0, help="batches of an epoch; 0 means all")
    add("--warmup", type=int, default=5, help="first batches that do not count")
    add("--save-dir", help="new folder for the results; by default results/benchmark/TIMESTAMP")
    chosen, overrides = parse(parser)
    if min(chosen.epochs, chosen.batches + 1, chosen.warmup + 1) < 1:
        raise UserError(
            "--epochs, --batches, --warmup: allowed: --epochs from 1, the others from 0"
        )
    quiet()
    folder = new_folder(chosen.save_dir, "benchmark")
    training = read_training(chosen, overrides)
    timer = StepTimer(training.trainer["accelerator"])
    with TemporaryDirectory() as logs:  # logging is a part of the step, what is logged no result
        trainer = fit(
            training,
            timer,
            max_epochs=chosen.epochs,
            limit_train_batches=chosen.batches or 1.0,
            enable_progress_bar=sys.stderr.isatty(),
            logger=CSVLogger(logs),
        )
    ranks = from_all_ranks(timer.batches)
    if not trainer.is_global_zero:
        return 0
    if len(ranks[0]) <= chosen.warmup:
        raise UserError(f"--warmup: {chosen.warmup} leaves none of {len(ranks[0])} batches")
    summary = summarise(ranks, chosen.warmup)
    about = {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": describe_device(trainer.strategy.root_device),
        "precision": chosen.precision,
        "model": type(training.module).__name__,
        "data": type(training.data).__name__,
    }
    print("\n".join(f"{key:<10}{value}" for key, value in about.items()))
    print(report(summary))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "timing_summary.yaml").write_text(yaml.safe_dump(about | summary, sort_keys=False))
    config = yaml.safe_dump(training.resolved, sort_keys=False)
    (folder / "benchmark_config.yaml").write_text(config)
    write_table(folder / "timing_results.csv", ranks, chosen.warmup)
    draw(folder, ranks[0], chosen.warmup)
    print(f"look at {os.path.relpath(folder)}: timing_summary.yaml, timing_results.csv, pictures")
    return 0


def from_all_ranks(batches: list[Batch]) -> list[list[Batch]]:
    """What each rank has measured."""
    if not dist.is_initialized():
        return [batches]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, batches)
    return found


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
