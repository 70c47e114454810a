"""Have you found what makes a training of planted.py slow, and have you repaired it?

  uv run python check_planted.py A --part data             is it the part of the step that is slow?
  uv run python check_planted.py A --repaired mine.A       is it as fast now as it could be?

A repair may log less often or less, but it must not change the training: the losses are compared.
"""

import argparse
import sys
from statistics import median
from typing import Any

import planted
from profiled_training import Formatter, import_class, options
from src.data.pytorch_dataset import FieldDataset
from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.lightning_settings import quiet
from src.model.lightning_module import AutoencoderModule
from step_ladder import Rung, measure
from step_timer import PARTS
from tqdm import tqdm

LIMIT = 1.2  # times the step without what was planted
SAME = 1e-4  # relative difference of losses


def read_options() -> argparse.Namespace:
    """The command line. Raises UserError with one line for what makes no sense."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=Formatter, allow_abbrev=False, exit_on_error=False
    )
    add = parser.add_argument
    add("variant", nargs="?", choices=["A", "B", "C"], help="the class in planted.py")
    add("--part", choices=PARTS, help="your answer: the part of the step that is slow")
    add("--repaired", help="import path of your class, which replaces the variant")
    add("--steps", type=int, default=30, help="steps of each run that count")
    add("--turns", type=int, default=3, help="runs of each")
    try:
        chosen, rest = parser.parse_known_args()
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    if rest:
        raise UserError(f"{rest[0]} is no option; --help lists them")
    if not chosen.variant or not (chosen.part or chosen.repaired):
        raise UserError("nothing to check; allowed: A, B or C, with --part or --repaired")
    if min(chosen.steps, chosen.turns) < 1:
        raise UserError("--steps, --turns: allowed: from 1")
    return chosen


def run(path: str, steps: int) -> dict[str, Any]:
    """Train with a module, or with a dataset; both are told by an import path."""
    settings = {"data.dataset": "OceanDataset"}
    chosen = options(None).parse_args(["--device", "cpu"])
    vars(chosen).update(steps=steps, warmup=3, epochs=4)
    if issubclass(import_class(path, object, "--repaired"), FieldDataset):
        settings["data.dataset"] = path
    else:
        chosen.model_class = path
    return measure(Rung(path, settings, variant=False), chosen, [])


def main() -> int:
    """Measure the variant, the repair and the plain training in turns. Returns the exit code."""
    chosen = read_options()
    quiet()
    kind = getattr(planted, chosen.variant)
    plain = "src.data.pytorch_dataset.OceanDataset"
    if issubclass(kind, AutoencoderModule):
        plain = "src.model.lightning_module.AutoencoderModule"
    paths = {"plain": plain, "planted": f"planted.{chosen.variant}"}
    if chosen.repaired:
        base = AutoencoderModule if issubclass(kind, AutoencoderModule) else FieldDataset
        import_class(chosen.repaired, base, "--repaired")
        paths["repaired"] = chosen.repaired
    turns = tqdm(range(chosen.turns), unit="turn", disable=not sys.stderr.isatty())
    runs = [{name: run(path, chosen.steps) for name, path in paths.items()} for _ in turns]
    passed = True
    for name in paths:
        step = median(turn[name]["step"] for turn in runs)
        ratio = median(turn[name]["step"] / turn["plain"]["step"] for turn in runs)
        print(f"{name:<10}{1e3 * step:>8.1f} ms a step, {ratio:.2f} times the plain one")
    if chosen.part:
        passed = check_part(chosen.part, runs) and passed
    if chosen.repaired:
        passed = check_repair(runs) and passed
    return 0 if passed else 1


def check_part(answer: str, runs: list[dict[str, Any]]) -> bool:
    """Whether the answer is the part that has grown most."""
    growth = {
        part: median(turn["planted"]["parts"][part] - turn["plain"]["parts"][part] for turn in runs)
        for part in PARTS
    }
    right = max(growth, key=growth.__getitem__) == answer
    if right:
        print(f"right: {answer} takes {1e3 * growth[answer]:.1f} ms longer; now find out why")
    else:
        print(f"no: {answer} is not what has grown most; what does timing_benchmark.py say?")
    return right


def check_repair(runs: list[dict[str, Any]]) -> bool:
    """Whether the repair is fast and learns the same."""
    ratio = median(turn["repaired"]["step"] / turn["plain"]["step"] for turn in runs)
    pairs = zip(runs[0]["plain"]["losses"], runs[0]["repaired"]["losses"], strict=True)
    differs = max(abs(one - other) / abs(one) for one, other in pairs)
    if differs > SAME:
        print(f"no: the losses differ by {differs:.0e}; allowed: {SAME:.0e}")
    elif ratio > LIMIT:
        print(f"not yet: {ratio:.2f} times the plain step; allowed: {LIMIT}")
    else:
        print("repaired: as fast as without, and the losses are the same")
    return differs <= SAME and ratio <= LIMIT


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
