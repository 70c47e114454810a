"""What does not count is replaced before it is squared: in the way back 0 times NaN is NaN."""

import torch
from torch import Tensor


def loss(prediction: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
    """Mean squared error where ``hidden`` (B, N) and ``x`` is valid; prediction, x: (B, N, P)."""
    counts = hidden[..., None] & ~x.isnan()
    squared_error = torch.where(counts, prediction - x, 0.0) ** 2
    return squared_error.sum() / counts.sum().clamp(min=1)
