"""How fast this machine multiplies matrices and copies memory: the two sides of the roofline."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Median time of some work, after a first try."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def synchronize(device: torch.device) -> None:
    """Wait for the device: a GPU works through a queue."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def matrix_product(device: torch.device, size: int = 2048) -> float:
    """FLOP/s of a large product in float32, the best of some sizes."""
    best = 0.0
    for n in (size // 2, size):
        a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
        best = max(best, 2 * n**3 / seconds(partial(torch.mm, a, b), device))
    return best


def copy_speed(device: torch.device, megabytes: int = 256) -> float:
    """Bytes/s of a copy inside the device's memory, read and written ones together."""
    a = torch.zeros(megabytes << 18, device=device)
    b = torch.ones_like(a)
    return 2 * 4 * a.numel() / seconds(lambda: b.copy_(a), device)
