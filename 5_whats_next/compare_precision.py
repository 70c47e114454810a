"""Compare precisions on this machine: speed, memory, and the training against float32.

  uv run python compare_precision.py                   float32, bfloat16, and on a GPU float16
  uv run python compare_precision.py --emulate         float16 on a CPU too: right, and very slow
  uv run python compare_precision.py --rounds 60 --model.depth 4

The trainings take turns, some steps each on the same batches, so that whatever else the machine
does meanwhile meets all of them. One more training in float32 begins with weights that are rounded
to bfloat16, once: how far it ends from the first tells how sensitive the training is. Prints tables
and a verdict; the picture and the losses go to a new folder output/precision/run_N.
"""

import os
import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter

import gradient_range
import numpy as np
import torch
from jsonargparse import Namespace
from kept_memory import kept_bytes
from precision_report import ROUNDED, Result, draw, table, verdict, write
from short_training import ShortTraining, batches, options, parse, results_folder
from src.data.loaders import Loaders, make_loaders
from src.device import choose_device, describe_device
from src.lightning_errors import one_line_errors
from tqdm import tqdm


def main() -> int:
    """Read the command line, train, report. Returns the exit code."""
    parser = options(__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=30, help="turns of each precision")
    add("--steps", type=int, default=10, help="steps of a turn")
    add("--tolerance", type=float, default=0.05, help="of the last quarter's losses, relative")
    add("--rmse-tolerance", type=float, default=0.02, help="of the validation RMSE, relative")
    add("--emulate", action="store_true", help="float16 on a CPU, which has none of its own")
    chosen, config = parse(parser)
    device = choose_device(config.trainer.accelerator)
    loaders = make_loaders(**vars(config.data), seed=config.seed_everything)
    names = ["32-true", ROUNDED, "bf16-mixed"]
    if device.type == "cuda" or chosen.emulate:
        names.append("16-mixed")
    print(f"device    {describe_device(device)}")
    print(f"training  {chosen.rounds * chosen.steps} steps, {config.data.batch_size} samples each")
    if device.type != "cuda":
        told = "emulated: its speed says nothing" if chosen.emulate else "left out: needs a GPU"
        print(f"float16   {told}", flush=True)
    results = compare(names, config, loaders, device, chosen.rounds, chosen.steps)
    print(table(results, "peak" if device.type == "cuda" else "kept"))
    reference, rounded, *others = results
    for result in others:
        print(verdict(result, reference, rounded, chosen.tolerance, chosen.rmse_tolerance))
    print("\nwhat becomes of the gradients, with the weights of the start")
    training = ShortTraining(config, loaders, device, 1, seed=config.seed_everything)
    x, index, _ = next(batches(loaders, device))
    print(gradient_range.table(gradient_range.survey(training, x[:2], index[:2])))
    folder = results_folder("precision")
    write(folder / "losses.csv", results)
    draw(folder / "curves.png", results, chosen.tolerance)
    print(f"look at {os.path.relpath(folder)}: curves.png, losses.csv")
    return 0


def compare(
    names: Sequence[str],
    config: Namespace,
    loaders: Loaders,
    device: torch.device,
    rounds: int,
    steps: int,
) -> list[Result]:
    """Train once in each precision, in turns."""

    def new(name: str) -> ShortTraining:
        precision, _, rounded = name.partition(",")
        seed = config.seed_everything
        training = ShortTraining(config, loaders, device, rounds * steps, seed, precision)
        with torch.no_grad():
            for weight in training.model.parameters() if rounded else ():
                weight.copy_(weight.bfloat16())
        return training

    source = batches(loaders, device)
    megabytes = [memory(new(name), *next(source)) / 1e6 for name in names]
    source = batches(loaders, device)
    trainings = [new(name) for name in names]
    seconds = np.zeros((rounds, len(names)))
    for turn in tqdm(range(rounds), unit="round", disable=not sys.stderr.isatty()):
        given = [next(source) for _ in range(steps)]
        # Forwards and backwards, so that nobody always comes after the same one.
        order = list(enumerate(trainings))[:: 1 if turn % 2 else -1]
        for number, training in order:
            wait(device)
            start = perf_counter()
            for batch in given:
                training.step(*batch)
            wait(device)
            seconds[turn, number] = perf_counter() - start
    counted = seconds[min(2, rounds - 1) :]  # first calls set things up
    return [
        Result(
            name,
            1e3 * median(counted[:, number]) / steps,
            median(counted[:, 0] / counted[:, number]),
            megabytes[number],
            np.array(training.curve()),
            training.rmse(),
            training.left_out,
        )
        for number, (name, training) in enumerate(zip(names, trainings, strict=True))
    ]


def memory(training: ShortTraining, x: torch.Tensor, index: torch.Tensor, epoch: int) -> float:
    """Bytes: on a GPU the most that a step allocates, elsewhere what is kept for the gradients."""
    if x.device.type != "cuda":
        own = [x, index, *training.model.parameters()]
        return kept_bytes(lambda: training.forward(x, index, epoch), own)
    training.step(x, index, epoch)  # the optimiser's averages are there from the first step on
    torch.cuda.reset_peak_memory_stats()
    training.step(x, index, epoch)
    return torch.cuda.max_memory_allocated()


def wait(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
