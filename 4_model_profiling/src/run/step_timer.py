"""How long the parts of each training step take, on the device that does the work."""

import time
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch.profilers import Profiler

# The last word of Lightning's name of an action, and the part of a step that it belongs to. One
# action may run inside of another; what is in none of them is "other": hooks, callbacks, logging.
PARTS = {
    "train_dataloader_next": "data",
    "batch_to_device": "transfer",
    "training_step": "forward",
    "backward": "backward",
    "configure_gradient_clipping": "clipping",
    "optimizer_step": "optimizer",
}
WARMUP = 5  # steps that do not count


class StepTimer(Profiler):
    """Seconds of each part of each step. Lightning calls start and stop of its profiler.

    A GPU works through a queue: a call returns as soon as its work is queued, and a clock around it
    would measure how fast Python fills the queue. So marks (CUDA events) go into the queue, too,
    and are read at the end. Nothing is waited for: the training runs as it would without them.

    Args:
        device: cuda has events; others are waited for at each mark, and have the processor's clock.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.epoch = -1
        self.epochs: list[int] = []  # of each step
        # Of each step: when a part began, or went on after another one inside of it.
        self.steps: list[list[tuple[str, Any]]] = []
        self.running: list[str] = []  # the part that we are in, and those around it

    def start(self, action_name: str) -> None:
        """A part begins."""
        if action_name == "run_training_epoch":
            self.epoch += 1
        part = PARTS.get(action_name.rpartition(".")[2])
        if part is None:
            return
        # A loader of unknown length is asked for a second batch before the first one is used.
        if part == "data" and (not self.steps or self.has("forward")):
            self.steps.append([])
            self.epochs.append(self.epoch)
        self.running.append(part)
        self.mark(part)

    def stop(self, action_name: str) -> None:
        """A part ends, and the one around it goes on."""
        kind, _, name = action_name.rpartition(".")
        if name in PARTS:
            self.running.pop()
            self.mark(self.running[-1] if self.running else "other")
        if kind.startswith("[LightningModule]") and name == "on_train_batch_end":
            self.mark("end")

    def has(self, part: str) -> bool:
        """Whether this part is in the last step."""
        return any(name == part for name, _ in self.steps[-1])

    def mark(self, part: str) -> None:
        """From here on it is this part."""
        # After the last step of an epoch, validation copies batches, too: not a part of a step.
        if self.steps and not self.has("end"):
            self.steps[-1].append((part, self.now()))

    def now(self) -> Any:
        """A time stamp: now, or on CUDA when the queue reaches it."""
        if self.device == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        if self.device != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()

    def seconds(self) -> list[dict[str, float]]:
        """A row for each step: its epoch, the seconds of each part, and those of the whole."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        rows = []
        for number, marks in enumerate(self.steps):
            if "forward" not in dict(marks):  # the loader was asked, and had no more
                continue
            row = {"epoch": self.epochs[number], "total": 0.0}
            row |= dict.fromkeys([*PARTS.values(), "other"], 0.0)
            # A step ends where the next one begins, or in front of the validation.
            following = number + 1
            is_last = following == len(self.steps)
            if not is_last and self.epochs[following] == self.epochs[number]:
                marks = [*marks, self.steps[following][0]]
            for (part, start), (_, end) in pairwise(marks):
                seconds = self.elapsed(start, end)
                row["other" if part == "end" else part] += seconds
                row["total"] += seconds
            rows.append(row)
        return rows

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds between two time stamps."""
        if self.device == "cuda":
            return float(start.elapsed_time(end)) / 1e3
        return float(end - start)
