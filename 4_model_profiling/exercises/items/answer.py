"""A step that waits for its device.

``train`` is right: the mean loss of the samples, each over its valid values, for samples with any.
But Python has to know numbers to go on. A GPU is waited for each time, and its queue runs empty. It
also goes through the samples one by one. Keep the same weights and the same losses, but read
numbers once in ``every`` steps at most, and call as many operators for 16 samples as for 4.
"""

import torch
from torch import Tensor, nn


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor], every: int
) -> list[float]:
    """Train on batches (B, N, P), NaN where there is no value; the mean loss of ``every`` steps."""
    history, total = [], 0.0
    for step, x in enumerate(batches, start=1):
        prediction = model(x.nan_to_num())
        losses = []
        for guess, sample in zip(prediction, x, strict=True):
            valid = ~sample.isnan()
            if valid.any():
                losses.append((guess[valid] - sample[valid]).square().mean())
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % every == 0:
            history.append(total / every)
            total = 0.0
    return history
