"""Optimiser and learning-rate schedule of the canonical masked-autoencoder recipe."""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from src.errors import UserError


def make_optimizer(
    model: nn.Module,
    total_steps: int,
    lr: float = 4e-3,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.05,
    warmup_fraction: float = 0.05,
    fused: bool = True,
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """AdamW with a linear warmup and a cosine decay to zero, stepped once per optimiser step.

    Args:
        model: the parameters to optimise.
        total_steps: optimiser steps in the whole training.
        lr: peak learning rate.
        betas: decay rates of AdamW's running averages.
        weight_decay: pull of the weight matrices towards zero.
        warmup_fraction: share of the training in which the learning rate rises, 0 up to 1.
        fused: update all weights in one pass, instead of a handful for each of them.
    """
    if not 0 <= warmup_fraction < 1:
        raise UserError(
            f"optimizer.warmup_fraction: {warmup_fraction} is outside; allowed: 0 up to 1"
        )
    if lr <= 0:
        raise UserError(f"optimizer.lr: {lr} is not positive")
    # Biases, norms and the mask token are no matrices: pulling them to zero regularises nothing.
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused or None)
    warmup_steps = round(warmup_fraction * total_steps)
    scheduler = LambdaLR(optimizer, lambda step: lr_factor(step, warmup_steps, total_steps))
    return optimizer, scheduler


def lr_factor(step: int, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak learning rate at a step: a function of the step alone, so nothing to
    restore.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
