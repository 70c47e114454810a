"""All ranks draw the masks of the whole global batch, the same ones, and each takes its own."""

import numpy as np
import torch
from torch import Tensor

MASK_RATIO = 0.75


def hidden(
    seed: int, step: int, index: Tensor, rank: int, world_size: int, num_patches: int
) -> Tensor:
    """Which patches are hidden, (B, N), for the samples ``index`` (B,) of this rank."""
    rng = np.random.default_rng([seed, step])
    # A hash of (seed, step, sample, patch) does it too, and draws nothing for others: see
    # src/model/masking.py.
    order = rng.random((len(index) * world_size, num_patches)).argsort(axis=1)
    return torch.from_numpy(order[rank::world_size] < round(MASK_RATIO * num_patches))
