"""A curve that knows how many ranks there are.

``hidden`` draws which patches are hidden, on each rank with other random numbers. Each mask is a
good one, and the training runs well. But the loss of two ranks follows another curve than that of
one process, and nobody can say whether that is a mistake. Make it one curve for any number of
ranks. Samples, steps and seeds still have masks of their own, and a step that is repeated has the
same.
"""

import numpy as np
import torch
from torch import Tensor

MASK_RATIO = 0.75


def hidden(
    seed: int, step: int, index: Tensor, rank: int, world_size: int, num_patches: int
) -> Tensor:
    """Which patches are hidden, (B, N), for the samples ``index`` (B,) of this rank.

    They are number rank, rank + world_size, rank + 2 world_size, ... of the step's global batch.
    """
    rng = np.random.default_rng([seed, step, rank])
    order = rng.random((len(index), num_patches)).argsort(axis=1)
    return torch.from_numpy(order < round(MASK_RATIO * num_patches))
