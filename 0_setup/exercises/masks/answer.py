"""Masks that do not remember.

``hidden`` draws which patches of each sample are hidden. It works, as long as one process trains
from the beginning to the end. With two processes, or after a resume, each sample gets other masks.
Make it a function of (seed, epoch, sample, patch) alone. src/model/masking.py has one way.
"""

import torch
from torch import Tensor


def hidden(seed: int, epoch: int, index: Tensor, num_patches: int, mask_ratio: float) -> Tensor:
    """Which patches are hidden, (B, N), for the samples ``index`` (B,)."""
    torch.manual_seed(seed + epoch)
    order = torch.rand(len(index), num_patches).argsort(dim=1)
    return order < round(mask_ratio * num_patches)
