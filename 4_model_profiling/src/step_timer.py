"""How long the parts of each training step take, on the device that does the work."""

import time
from typing import Any

import torch
from lightning.pytorch.profilers import Profiler

# The last word of Lightning's name of an action, and the part of a step that it belongs to. The
# rest is "other": clipping, the optimiser, hooks, callbacks, logging.
PARTS = {
    "train_dataloader_next": "data",
    "batch_to_device": "transfer",
    "training_step": "forward",
    "backward": "backward",
}
WARMUP = 5  # steps that do not count


class StepTimer(Profiler):
    """Seconds of each part of each step. Lightning calls start and stop of its profiler."""

    # A GPU works through a queue: a call returns as soon as its work is queued, and a clock around
    # it would measure how fast Python fills the queue. So marks go into the queue too, and are read
    # at the end. Nothing is waited for: the training runs as it would without them.
    def __init__(self, device: str) -> None:
        # cuda, or others, which have the processor's clock.
        super().__init__()
        self.device, self.epoch = device, -1
        # Epoch, end, and of each part its starts and stops.
        self.steps: list[dict[str, Any]] = []

    # A time stamp: now, or on CUDA when the queue reaches it.
    def mark(self) -> Any:
        if self.device == "mps":  # here the training does wait
            torch.mps.synchronize()
        if self.device != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self, action_name: str) -> None:
        if action_name == "run_training_epoch":
            self.epoch += 1
        part = PARTS.get(action_name.rpartition(".")[2])
        # A loader of unknown length is asked for a second batch before the first one is used.
        if part == "data" and (not self.steps or "forward" in self.steps[-1]):
            self.steps.append({"epoch": self.epoch})
        self.add_mark(part)

    def stop(self, action_name: str) -> None:
        kind, _, name = action_name.rpartition(".")
        self.add_mark(PARTS.get(name))
        if kind.startswith("[LightningModule]") and name == "on_train_batch_end":
            self.steps[-1]["end"] = self.mark()

    def add_mark(self, part: str | None) -> None:
        # After the last step of an epoch, validation copies batches too: not a part of a step.
        if part and self.steps and "end" not in self.steps[-1]:
            self.steps[-1].setdefault(part, []).append(self.mark())

    def seconds(self) -> list[dict[str, float]]:
        """A row for each step: its epoch, the seconds of each part, and those of the whole."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        rows, followed_by = [], [*self.steps[1:], {}]
        for step, following in zip(self.steps, followed_by, strict=True):
            # A step ends where the next one begins, or in front of the validation.
            is_last = following.get("epoch") != step["epoch"]
            total = self.elapsed(
                step["data"][0], step["end"] if is_last else following["data"][0]
            )
            row = {"epoch": step["epoch"], "total": total, "other": total}
            for part in PARTS.values():
                marks = step.get(part, [])
                row[part] = sum(map(self.elapsed, marks[::2], marks[1::2]))
                row["other"] -= row[part]
            rows.append(row)
        return rows

    def elapsed(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) / 1e3 if self.device == "cuda" else end - start
