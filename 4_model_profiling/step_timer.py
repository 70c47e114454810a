"""How long the parts of each training step take, on the device that does the work.

Lightning tells its profiler when it fetches a batch, copies it, calls ``training_step`` and so on.
``StepTimer`` is such a profiler. At each of these moments it asks the device, not the processor,
for the time: a GPU works through a queue, and a call that returns at once has only put work into
it. The times between the moments add up to the whole, and nothing is waited for, so the training
runs as it would without them. What the processor does while the GPU is busy therefore counts
nothing, as it should: it costs no time.
"""

import time
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from lightning.pytorch.profilers import Profiler

# How Lightning calls an action (its last word), and the part of the step that it is. It has none
# for a backward that the module calls itself; the hooks before and after it are always called.
PART_OF = {
    "train_dataloader_next": "data",
    "batch_to_device": "transfer",
    "training_step": "forward",
    "optimizer_step": "optimizer",
}
BACKWARD = "backward"
BEFORE_BACKWARD, AFTER_BACKWARD = "on_before_backward", "on_after_backward"
OVERHEAD = "overhead"  # hooks, callbacks, logging, and whatever else lies between the parts
PARTS = ("data", "transfer", "forward", BACKWARD, "optimizer", OVERHEAD)


class Batch(NamedTuple):
    """Seconds of one training batch, by part."""

    epoch: int
    number: int  # in the epoch, from 0
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class Moments:
    """Moments on the host's clock; the CPU does at once what it is told."""

    def now(self) -> Any:
        return time.perf_counter()

    def wait(self) -> None:
        """Until all moments have come."""

    def seconds(self, start: Any, end: Any) -> float:
        return end - start


class CudaMoments(Moments):
    """Moments in the GPU's queue: each comes when the work before it is done.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html
    """

    def now(self) -> torch.cuda.Event:
        moment = torch.cuda.Event(enable_timing=True)
        moment.record()
        return moment

    def wait(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end) / 1e3


class MpsMoments(Moments):
    """The host's clock, after Apple's GPU has done its work: this does slow the training down."""

    def now(self) -> float:
        torch.mps.synchronize()
        return time.perf_counter()


MOMENTS = {"cuda": CudaMoments, "mps": MpsMoments}


class StepTimer(Profiler):
    """Divides the time of each training batch among PARTS.

    An action inside another one counts for itself alone: Lightning calls ``training_step`` and
    ``backward`` inside of ``optimizer_step``, and a module that optimises by hand calls
    ``backward`` inside of ``training_step``.

    Args:
        device: type of the device that trains: cuda, mps or cpu.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.moments = MOMENTS.get(device, Moments)()
        self.batches: list[Batch] = []
        self._epoch = -1
        self._marks: list[list[tuple[str, Any]]] = []  # of each batch of the epoch
        self._parts: list[str] = []  # what is under way, the innermost last

    def start(self, action_name: str) -> None:
        if action_name == "run_training_epoch":
            self._epoch += 1
            self._marks, self._parts = [], [OVERHEAD]
        elif self._parts and is_hook(action_name, AFTER_BACKWARD):
            self._end_part()
        elif self._parts and (part := part_of(action_name)):
            # A loader without a length is asked for the second batch before the first one is used.
            if part == "data" and (not self._marks or self.has_forward(self._marks[-1])):
                self._mark(OVERHEAD)  # ends the batch before
                self._marks.append([])
            self._begin_part(part)

    def stop(self, action_name: str) -> None:
        if action_name == "run_training_epoch":
            self._mark(OVERHEAD)
            self._end_epoch()
        elif self._parts and is_hook(action_name, BEFORE_BACKWARD):
            self._begin_part(BACKWARD)
        elif self._parts and part_of(action_name):
            self._end_part()

    def _begin_part(self, part: str) -> None:
        self._parts.append(part)
        self._mark(part)

    def _end_part(self) -> None:
        """Go on with the part around it."""
        self._parts.pop()
        self._mark(self._parts[-1])

    def _mark(self, part: str) -> None:
        """What comes now is ``part``."""
        if self._marks:
            self._marks[-1].append((part, self.moments.now()))

    @staticmethod
    def has_forward(marks: list[tuple[str, Any]]) -> bool:
        return any(part == "forward" for part, _ in marks)

    def _end_epoch(self) -> None:
        """Turn moments into seconds, once they have all come."""
        self.moments.wait()
        for number, marks in enumerate(filter(self.has_forward, self._marks)):
            seconds = dict.fromkeys(PARTS, 0.0)
            for (part, start), (_, end) in pairwise(marks):
                seconds[part] += self.moments.seconds(start, end)
            self.batches.append(Batch(self._epoch, number, seconds))
        self._marks, self._parts = [], []


def is_hook(action_name: str, hook: str) -> bool:
    """Whether an action is this hook of the module; callbacks have hooks of the same names."""
    return action_name.startswith("[LightningModule]") and action_name.endswith(f".{hook}")


def part_of(action_name: str) -> str | None:
    """The part of a step that an action is, from its name such as [Strategy]X.training_step."""
    return PART_OF.get(action_name.rpartition(".")[2])
