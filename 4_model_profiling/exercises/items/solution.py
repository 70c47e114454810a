"""Whole batches, torch.where in place of a choice, and a sum that stays on the device."""

import torch
from torch import Tensor, nn


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor], every: int
) -> list[float]:
    """Train on batches (B, N, P), NaN where there is no value; the mean loss of ``every`` steps."""
    history, total = [], 0.0
    for step, x in enumerate(batches, start=1):
        valid = ~x.isnan()
        error = torch.where(valid, model(x.nan_to_num()) - x, 0.0).square()
        counts = valid.sum(dim=(1, 2))  # (B,)
        losses = error.sum(dim=(1, 2)) / counts.clamp(min=1)  # 0 for a sample without a value
        loss = losses.sum() / (counts > 0).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
        if step % every == 0:
            history.append(total.item() / every)
            total = 0.0
    return history
