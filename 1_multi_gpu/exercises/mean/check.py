"""Is the gradient after DDP's average that of one process with the whole batch?"""

from collections.abc import Callable
from math import isclose
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


class WaitsError(BaseException):
    """A rank has come to a sum that is not known yet; it holds what the rank brings."""


def turn(rank: int, compute: Callable, known: list[list[Tensor]]) -> tuple[Any, Any]:
    """What ``compute(rank, sum_over_ranks)`` gives, or else what it brings to an unknown sum."""
    meetings = iter(known)

    def sum_over_ranks(*numbers: Tensor) -> list[Tensor]:
        for sums in meetings:  # only the next one
            return [total.clone() for total in sums]
        raise WaitsError([torch.as_tensor(number).detach() for number in numbers])

    try:
        return compute(rank, sum_over_ranks), None
    except WaitsError as waits:
        return None, waits.args[0]


def on_ranks(world_size: int, compute: Callable) -> list[Any]:
    """What ``compute`` gives on each rank: they take turns, and begin anew after each new sum."""
    known: list[list[Tensor]] = []
    while True:
        turns = [turn(rank, compute, known) for rank in range(world_size)]
        waiting = [rank for rank, (_, brought) in enumerate(turns) if brought is not None]
        if not waiting:
            return [result for result, _ in turns]
        absent = sorted(set(range(world_size)) - set(waiting))
        assert not absent, (
            f"rank {waiting[0]} waits in sum_over_ranks, and rank {absent[0]} does not come: here "
            "a training hangs"
        )
        known.append([sum(of_ranks) for of_ranks in zip(*(b for _, b in turns), strict=True)])


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    x = torch.linspace(0.5, 2, 12, dtype=torch.float64)
    target = torch.linspace(-1, 2, 12, dtype=torch.float64) ** 3

    def gradient(counts: list[int]) -> float:
        """DDP's average over ranks that have so many of the 12 values."""

        def on_rank(rank: int, sum_over_ranks: Callable) -> Tensor:
            own = torch.arange(12) - sum(counts[:rank])
            valid = (own >= 0) & (own < counts[rank])  # all else is land here
            weight = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
            squared_error = torch.where(valid, weight * x - target, 0).square().sum()
            loss = answer.loss(squared_error, valid.sum(), len(counts), sum_over_ranks)
            who = f"rank {rank} of ranks with {counts} valid values"
            assert getattr(loss, "requires_grad", False), (
                f"{who} has a loss without a gradient: its backward fails, and the others wait"
            )
            assert loss.isfinite(), f"{who} has the loss {loss:.0f}: land has to count nothing"
            loss.backward()
            assert weight.grad is not None
            return weight.grad

        return sum(on_ranks(len(counts), on_rank)).item() / len(counts)

    right = (2 * x * (0.1 * x - target)).mean().item()
    for counts in [12], [6, 6], [10, 2], [6, 4, 2, 0]:
        found = gradient(counts)
        assert isclose(found, right, rel_tol=1e-6), (
            f"ranks with {counts} valid values: the gradient is {found:.3f}, and {right:.3f} with "
            f"one process: {found / right:.4g} times as much"
        )
    gradient([0, 0])  # all ranks have nothing but land
