"""Optimiser and learning-rate schedule of He et al. (https://arxiv.org/abs/2111.06377, A.1)."""

import math
from typing import Any, Literal

import torch
from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)

Schedule = Literal["cosine", "constant", "step", "restarts"]


def make_optimizer(
    model: torch.nn.Module,
    total_steps: int,
    lr: PositiveFloat = 4e-3,
    betas: tuple[ClosedUnitInterval, ClosedUnitInterval] = (0.9, 0.95),
    weight_decay: NonNegativeFloat = 0.05,
    warmup_fraction: ClosedUnitInterval = 0.05,
    fused: bool | None = None,
    schedule: Schedule = "cosine",
    periods: PositiveInt = 3,
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW with a linear warmup and then a schedule, stepped after every optimiser step.

    Args:
        model: the parameters to optimise.
        total_steps: optimiser steps in the whole training.
        lr: peak learning rate.
        betas: decay rates of AdamW's running averages.
        weight_decay: pull of the weight matrices towards zero.
        warmup_fraction: share of the training in which the learning rate rises.
        fused: update all weights in one pass, which rounds otherwise; null leaves it to PyTorch.
        schedule: cosine falls to zero once, restarts in each period; step divides by 10 after each.
        periods: equal parts of the training after the warmup, for restarts and step.
    """
    # Biases, norms and the mask token are not decayed: pulling them to zero regularises nothing.
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[Any] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)
    warmup_steps = round(warmup_fraction * total_steps)
    period_steps = max(1, math.ceil((total_steps - warmup_steps) / periods))

    def lr_factor(step: int) -> float:
        """Of the peak rate; a function of the step alone, so a resumed run needs no more.

        After the warmup, restarts is PyTorch's CosineAnnealingWarmRestarts, and step its StepLR.
        """
        if step < warmup_steps:
            # + 1: the first step's rate is above 0, and only one step has the peak rate.
            return (step + 1) / (warmup_steps + 1)
        period, position = divmod(step - warmup_steps, period_steps)
        if schedule == "constant":
            return 1.0
        if schedule == "step":
            return 0.1**period
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        if schedule == "restarts":
            progress = position / period_steps
        return 0.5 * (1 + math.cos(math.pi * progress))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
