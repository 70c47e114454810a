"""A batch in parts, one after the other: less memory, and the gradients of the whole batch."""

# Also known as gradient accumulation. Lightning's accumulate_grad_batches takes the mean of the
# parts' losses, in which a part with little ocean counts as much as one with a lot.
#
# B batch, V variables, T times, H latitudes, W longitudes.

from contextlib import nullcontext

import lightning as L
import torch
from einops import rearrange
from torch import Tensor

from src.model.masking import random_mask
from src.model.pytorch_model import PATCHES, MaskedAutoencoder


def count_scored(
    model: MaskedAutoencoder, x: Tensor, index: Tensor, epoch: int
) -> Tensor:
    """How many values of ``x`` (B, V, T, H, W) are hidden and valid."""
    valid = ~torch.isnan(rearrange(x, PATCHES, **model.axes))
    mask = random_mask(valid.any(dim=-1), index, model.seed, epoch, model.mask_ratio)
    return (mask.hidden[..., None] & valid).sum()


def backward_all_but_last(
    module: L.LightningModule, parts: list[tuple[Tensor, Tensor]], count: Tensor
) -> Tensor:
    """Add the gradients of all parts but the last to the weights; returns their squared errors.

    Args:
        module: its ``model`` is a MaskedAutoencoder; it must not clear gradients after this.
        parts: x (B, V, T, H, W) and index (B,) of each.
        count: scored values of the whole batch, of all ranks.
    """
    strategy, error = module.trainer.strategy, torch.zeros((), device=module.device)
    # DDP sums the gradients of the ranks in the last backward pass only.
    with getattr(strategy, "block_backward_sync", nullcontext)():
        for x, index in parts[:-1]:
            squared_error = module.model(x, index, module.current_epoch).squared_error
            # Through Lightning, which scales the loss in 16-mixed. It needs no optimizer (None).
            strategy.backward(squared_error * module.trainer.world_size / count, None)
            error = error + squared_error.detach()
    return error
