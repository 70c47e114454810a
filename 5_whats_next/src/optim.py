"""Optimiser and learning-rate schedule of the canonical masked-autoencoder recipe."""

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from src.errors import UserError

Schedule = Literal["cosine", "constant", "cosine_restarts"]


def make_optimizer(
    model: nn.Module,
    total_steps: int,
    lr: float = 4e-3,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.05,
    warmup_fraction: float = 0.05,
    fused: bool = True,
    schedule: Schedule = "cosine",
    cycles: int = 1,
    cycle_factor: int = 1,
    min_lr_fraction: float = 0.0,
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """AdamW with a linear warmup and a schedule behind it, stepped once per optimiser step.

    Args:
        model: the parameters to optimise.
        total_steps: optimiser steps in the whole training.
        lr: peak learning rate.
        betas: decay rates of AdamW's running averages.
        weight_decay: pull of the weight matrices towards zero.
        warmup_fraction: share of the training in which the learning rate rises, 0 up to 1.
        fused: update all weights in one pass, instead of a handful for each of them.
        schedule: after the warmup: cosine falls once, constant stays, cosine_restarts falls in
            each of several cycles and jumps back to the peak in between.
        cycles: cycles of cosine_restarts, 2 and more; the last one ends with the training.
        cycle_factor: how many times longer each cycle is than the one before it.
        min_lr_fraction: share of the peak at which a cosine ends.
    """
    if not 0 <= warmup_fraction < 1:
        raise UserError(
            f"optimizer.warmup_fraction: {warmup_fraction} is outside; allowed: 0 up to 1"
        )
    if lr <= 0:
        raise UserError(f"optimizer.lr: {lr} is not positive")
    check_schedule(schedule, cycles, cycle_factor, min_lr_fraction)
    # Biases, norms and the mask token are no matrices: pulling them to zero regularises nothing.
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused or None)
    warmup_steps = round(warmup_fraction * total_steps)
    starts = cycle_starts(warmup_steps, total_steps, cycles, cycle_factor)
    low = 1.0 if schedule == "constant" else min_lr_fraction
    scheduler = LambdaLR(optimizer, lambda step: lr_factor(step, starts, low))
    return optimizer, scheduler


def lr_factor(step: int, starts: list[int], low: float = 0.0) -> float:
    """Share of the peak learning rate at a step: a function of the step alone, so nothing to
    restore.

    This is a linear warmup and then PyTorch's CosineAnnealingWarmRestarts (SGDR, Loshchilov &
    Hutter, https://arxiv.org/abs/1608.03983), which could also be chained by SequentialLR. But
    those keep counters, and write a learning rate that depends on the one before.

    Args:
        step: optimiser steps that are done.
        starts: step at which each cycle begins, the warmup's end first, and the training's end.
        low: the share at which a cycle ends; 1 stays at the peak.
    """
    if step < starts[0]:
        return (step + 1) / (starts[0] + 1)
    # At its first step a cycle is at the peak; after the end of the training the last one stays
    # at its own end.
    cycle = max(i for i, start in enumerate(starts[:-1]) if start <= step)
    progress = (step - starts[cycle]) / max(1, starts[cycle + 1] - starts[cycle])
    return low + (1 - low) * (0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def cycle_starts(first: int, total_steps: int, cycles: int, factor: int) -> list[int]:
    """The step at which each cycle begins, and the end of the training.

    Each cycle is ``factor`` times longer than the one before it. Raises UserError if one of them
    would have no step in which the learning rate falls.
    """
    shares = [factor**cycle for cycle in range(cycles)]
    steps = total_steps - first
    starts = [first + round(steps * sum(shares[:i]) / sum(shares)) for i in range(cycles + 1)]
    shortest = min(end - start for start, end in pairwise(starts))
    if cycles > 1 and shortest < 2:
        raise UserError(
            f"optimizer.cycles: {cycles} cycles with cycle_factor {factor} do not fit the {steps} "
            f"steps after the warmup: the shortest has {shortest}; allowed: 2 and more for each"
        )
    return starts


def check_schedule(schedule: str, cycles: int, factor: int, low: float) -> None:
    """Raise UserError for arguments that do not fit together."""
    restarts = schedule == "cosine_restarts"
    if (cycles < 2) if restarts else (cycles != 1):
        allowed = "2 and more" if restarts else "1, or optimizer.schedule: cosine_restarts"
        raise UserError(
            f"optimizer.cycles: {cycles} does not fit the schedule {schedule}; allowed: {allowed}"
        )
    if factor < 1 or (factor > 1 and not restarts):
        allowed = "1 and more" if restarts else "1, or optimizer.schedule: cosine_restarts"
        raise UserError(f"optimizer.cycle_factor: {factor} does not fit; allowed: {allowed}")
    if not 0 <= low < 1 or (low and schedule == "constant"):
        allowed = "0 with schedule constant" if schedule == "constant" else "0 up to 1"
        raise UserError(f"optimizer.min_lr_fraction: {low} does not fit; allowed: {allowed}")
