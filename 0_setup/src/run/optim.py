"""Optimiser and learning-rate schedule of He et al. (https://arxiv.org/abs/2111.06377, A.1)."""

import math
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from src.run.errors import UserError


def make_optimizer(
    model: nn.Module,
    total_steps: int,
    lr: float = 4e-3,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.05,
    warmup_fraction: float = 0.05,
) -> tuple[Optimizer, LRScheduler]:
    """AdamW with a linear warmup and a cosine decay to zero, stepped after every optimiser step.

    Args:
        model: the parameters to optimise.
        total_steps: optimiser steps in the whole training.
        lr: peak learning rate.
        betas: decay rates of AdamW's running averages.
        weight_decay: pull of the weight matrices towards zero.
        warmup_fraction: share of the training in which the learning rate rises.

    Raises:
        UserError: a value is out of its range.
    """
    # Biases, norms and the mask token are not decayed: pulling them to zero regularises nothing.
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[Any] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": 0.0},
    ]
    try:
        optimizer = AdamW(groups, lr=lr, betas=betas, weight_decay=weight_decay)
    except ValueError as error:  # a negative learning rate, for example
        raise UserError(f"optimizer: {error}") from error
    warmup_steps = round(warmup_fraction * total_steps)

    def lr_factor(step: int) -> float:
        """Of the peak rate; a function of the step alone, so a resumed run needs no more."""
        if step < warmup_steps:
            # + 1: the first step's rate is above 0, and only one step has the peak rate.
            return (step + 1) / (warmup_steps + 1)
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * progress))

    return optimizer, LambdaLR(optimizer, lr_factor)


def clip_gradients(model: nn.Module, largest_norm: float | None) -> Tensor:
    """Scale the gradients down to ``largest_norm``, or not for None; returns their norm before."""
    return nn.utils.clip_grad_norm_(model.parameters(), largest_norm or math.inf)
