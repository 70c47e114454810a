"""Marks go into the queue between the parts, and are read when all of them have come."""

from collections.abc import Callable
from typing import Any


def seconds_of_parts(
    device: Any, parts: dict[str, Callable[[], None]], steps: int, warmup: int
) -> dict[str, float]:
    """Mean seconds of each part in ``steps`` training steps, which come after ``warmup`` others."""
    marks = []
    for step in range(warmup + steps):
        for name, run in parts.items():
            start = device.mark()
            run()
            end = device.mark()
            if step >= warmup:
                marks.append((name, start, end))
    device.synchronize()  # once: the queue never runs empty in between
    seconds = dict.fromkeys(parts, 0.0)
    for name, start, end in marks:
        seconds[name] += device.seconds(start, end) / steps
    return seconds
