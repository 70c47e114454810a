"""Optimiser and learning-rate schedule of He et al. (https://arxiv.org/abs/2111.06377, A.1)."""

import math
from typing import Any

import torch
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, PositiveFloat

from src.run.errors import UserError


def make_optimizer(
    model: torch.nn.Module,
    total_steps: int,
    lr: PositiveFloat = 4e-3,
    betas: tuple[ClosedUnitInterval, ClosedUnitInterval] = (0.9, 0.95),
    weight_decay: NonNegativeFloat = 0.05,
    warmup_fraction: ClosedUnitInterval = 0.05,
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW with a linear warmup and a cosine decay to zero, stepped after every optimiser step.

    Args:
        model: the parameters to optimise.
        total_steps: optimiser steps in the whole training.
        lr: peak learning rate.
        betas: decay rates of AdamW's running averages.
        weight_decay: pull of the weight matrices towards zero.
        warmup_fraction: share of the training in which the learning rate rises.
    """
    # Biases, norms and the mask token are not decayed: pulling them to zero regularises nothing.
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[Any] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas)
    warmup_steps = round(warmup_fraction * total_steps)

    def lr_factor(step: int) -> float:
        """Of the peak rate; a function of the step alone, so a resumed run needs no more."""
        if step < warmup_steps:
            # + 1: the first step's rate is above 0, and only one step has the peak rate.
            return (step + 1) / (warmup_steps + 1)
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * progress))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)


def clip_gradients(
    model: torch.nn.Module, largest_norm: float | None, step: int
) -> None:
    """Scale the gradients down to ``largest_norm``; None leaves them as they are.

    Raises:
        UserError: the norm is not finite. One step with it makes all weights NaN.
    """
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest_norm or math.inf)
    if not torch.isfinite(norm):
        raise UserError(f"step {step}: gradient {norm}; lower optimizer.lr?")
