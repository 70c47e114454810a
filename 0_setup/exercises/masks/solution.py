"""A hash of the four numbers, sorted: no generator, so nothing to remember."""

from src.model.masking import random_keys
from torch import Tensor


def hidden(seed: int, epoch: int, index: Tensor, num_patches: int, mask_ratio: float) -> Tensor:
    """Which patches are hidden, (B, N), for the samples ``index`` (B,)."""
    rank = random_keys(seed, epoch, index, num_patches).argsort(dim=1).argsort(dim=1)
    return rank < round(mask_ratio * num_patches)
