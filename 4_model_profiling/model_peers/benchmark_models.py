"""The training step of this chapter's model beside other masked autoencoders of the same size.

  uv run --project model_peers python model_peers/benchmark_models.py
  uv run --project model_peers python model_peers/benchmark_models.py --size tiny
  uv run --project model_peers python model_peers/benchmark_models.py --precision bf16 --size base

The models take turns in one process: a few steps of each, then again. A step is forward, backward
and fused AdamW, on images in memory. Ratios are medians of the ratios within a turn.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # the chapter: src, model_peers

import torch
from kept_memory import kept_bytes
from machine_speed import synchronize
from model_peers.candidates import CANDIDATES, REFERENCE, SIZES, Candidate, present
from src.device import choose_device, describe_device
from src.errors import UserError, one_line_errors
from torch import Tensor
from tqdm import tqdm


class Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the line breaks of the description, and shows the defaults."""


class Runner:
    """A model with its optimiser, which counts what its steps take."""

    def __init__(self, candidate: Candidate, images: Tensor, dtype: torch.dtype) -> None:
        self.model, self.loss = candidate.model.to(images.device), candidate.loss
        self.images, self.dtype = images, dtype
        weights = [p for p in self.model.parameters() if p.requires_grad]
        self.parameters = sum(p.numel() for p in weights)
        self.optimizer = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), fused=True)
        self.times: dict[str, list[float]] = {"step": [], "forward": []}  # of each turn
        self.peak = 0

    def forward(self) -> Tensor:
        """The loss, as for training."""
        device = self.images.device.type
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            return self.loss(self.images)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.forward().backward()
        self.optimizer.step()

    @torch.no_grad()
    def forward_alone(self) -> None:
        self.forward()

    def turn(self, steps: int) -> None:
        """Time some steps, and some forward passes alone."""
        for name, work in (("step", self.step), ("forward", self.forward_alone)):
            taken = []
            for _ in range(steps):
                start = time.perf_counter()
                work()
                synchronize(self.images.device)
                taken.append(time.perf_counter() - start)
            self.times[name].append(median(taken))

    def kept(self) -> int:
        """Bytes that a forward pass keeps for the gradients, without weights and images."""
        own = [*self.model.parameters(), *self.model.buffers(), self.images]
        return kept_bytes(self.forward, own)


def read_options(description: str | None) -> argparse.Namespace:
    """The command line. Raises UserError with one line for what makes no sense."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=Formatter, allow_abbrev=False, exit_on_error=False
    )
    add = parser.add_argument
    add("--size", default="small", choices=list(SIZES), help="of the models and the images")
    add("--models", nargs="+", choices=list(CANDIDATES), help="which; by default all that are here")
    add("--turns", type=int, default=20, help="how often each has its turn")
    add("--steps", type=int, default=10, help="steps in a turn")
    add("--precision", default="32", choices=["32", "bf16"], help="bf16 is automatic, and mixed")
    add("--device", default="auto", help="cuda, mps or cpu; auto takes the first that is there")
    try:
        chosen, rest = parser.parse_known_args()
    except argparse.ArgumentError as error:
        raise UserError(str(error).removeprefix("argument ")) from error
    if rest:
        raise UserError(f"{rest[0]} is no option; --help lists them")
    if min(chosen.turns, chosen.steps) < 1:
        raise UserError("--turns, --steps: allowed: from 1")
    chosen.models = chosen.models or present()
    for name in chosen.models:
        if name not in present():
            raise UserError(f"--models: {name} needs transformers; use --project model_peers")
    return chosen


def make_runners(chosen: argparse.Namespace) -> dict[str, Runner]:
    """The models on their device, with the same images for all; prints what they are."""
    place, shape = choose_device(chosen.device), SIZES[chosen.size]
    torch.manual_seed(0)
    images = torch.randn(shape.batch, shape.channels, shape.size, shape.size, device=place)
    dtype = torch.float32 if chosen.precision == "32" else torch.bfloat16
    print(f"{describe_device(place)}; {chosen.precision}")
    size = f"{shape.batch} images of {shape.size} x {shape.size}, {shape.tokens} patches"
    print(f"{chosen.size}: {size}")
    return {name: Runner(CANDIDATES[name](shape), images, dtype) for name in chosen.models}


def main() -> int:
    """Compare, and print a table. Returns the exit code."""
    chosen = read_options(__doc__)
    turns, steps = chosen.turns, chosen.steps
    runners = make_runners(chosen)
    print(f"{turns} turns of {steps} steps")
    show = sys.stderr.isatty()
    for runner in tqdm(runners.values(), desc="warm-up", unit="model", disable=not show):
        for _ in range(3):  # a compiler has its work here, and buffers get their places
            runner.step()
            runner.forward_alone()
    for _ in tqdm(range(turns), desc="turns", disable=not show):
        for runner in runners.values():
            runner.turn(steps)
    print(table(runners))
    return 0


def table(runners: dict[str, Runner]) -> str:
    """The table for people; ratios to the reference, where it is among them."""
    reference = runners.get(REFERENCE) or next(iter(runners.values()))
    head = f"{'':<29}{'parameters':>11}{'step ms':>9}{'faster':>8}{'forward ms':>12}{'faster':>8}"
    lines = [f"{head}{'kept MB':>9}{'ratio':>7}"]
    base = reference.kept()
    for name, runner in runners.items():
        cells = ""
        for part, width in (("step", 9), ("forward", 12)):
            own, other = runner.times[part], reference.times[part]
            ratio = median(theirs / mine for theirs, mine in zip(other, own, strict=True))
            cells += f"{1e3 * median(own):>{width}.2f}{ratio:>7.2f}x"
        kept = runner.kept()
        lines.append(
            f"{name:<29}{runner.parameters:>11,}{cells}{kept / 1e6:>9.1f}{kept / base:>7.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
