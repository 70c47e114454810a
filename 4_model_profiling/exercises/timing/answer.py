"""A clock for a device that works through a queue.

A part of a step only puts work into the queue, and returns, as on a GPU. ``device.now()`` is the
host's clock, ``device.mark()`` puts a mark into the queue (torch.cuda.Event), ``synchronize()``
waits until the queue is empty, and ``device.seconds(start, end)`` is the time between two marks
that have come. Here the host's clock measures how fast the queue is filled. Measure how long the
device takes for each part after the warm-up, and do not make the training slower by that.
"""

from collections.abc import Callable
from typing import Any


def seconds_of_parts(
    device: Any, parts: dict[str, Callable[[], None]], steps: int, warmup: int
) -> dict[str, float]:
    """Mean seconds of each part in ``steps`` training steps, which come after ``warmup`` others."""
    seconds = dict.fromkeys(parts, 0.0)
    for _ in range(warmup + steps):
        for name, run in parts.items():
            start = device.now()
            run()
            seconds[name] += device.now() - start
    return {name: total / (warmup + steps) for name, total in seconds.items()}
