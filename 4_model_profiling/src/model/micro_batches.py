"""A batch in parts, one after the other: less memory, and the gradients of the whole batch.

Also known as gradient accumulation. Lightning's accumulate_grad_batches takes the mean of the
parts' losses, in which a part with little ocean counts as much as one with a lot.

B batch, V variables, T times, H latitudes, W longitudes.
"""

from contextlib import nullcontext
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from src.model.pytorch_model import PATCHES
from src.run.errors import UserError


def split(x: Tensor, index: Tensor, num_parts: int) -> list[tuple[Tensor, Tensor]]:
    """The parts of a batch x (B, V, T, H, W), index (B,). Raises UserError if one were empty."""
    if num_parts > len(x):
        raise UserError(f"model.micro_batches: {num_parts} parts of {len(x)} samples")
    parts = zip(x.tensor_split(num_parts), index.tensor_split(num_parts), strict=True)
    return list(parts)


def count_scored(module: Any, x: Tensor, index: Tensor) -> Tensor:
    """How many values of ``x`` are hidden and valid, or the sum of their weights."""
    model = module.model
    valid = ~torch.isnan(rearrange(x, PATCHES, **model.axes))
    has_value = valid.any(dim=-1)
    epoch = module.current_epoch
    mask = model.random_mask(has_value, index, model.seed, epoch, model.mask_ratio)
    scored = mask.hidden[..., None] & valid
    weights = module.loss_weights(index)
    if weights is not None:
        weights = rearrange(weights.expand_as(x), PATCHES, **model.axes)
        scored = scored * weights
    return scored.sum()


def backward_each(
    module: Any, parts: list[tuple[Tensor, Tensor]], count: Tensor
) -> Tensor:
    """Add the gradients of these parts to the weights; returns the sum of their squared errors.

    Args:
        module: an AutoencoderModule, which must not clear gradients after this.
        parts: all parts of a batch but the last one.
        count: scored values of the whole batch, of all ranks.
    """
    strategy = module.trainer.strategy
    error = torch.zeros((), device=module.device)
    # DDP averages the gradients of the ranks in the last backward pass only.
    with getattr(strategy, "block_backward_sync", nullcontext)():
        for x, index in parts:
            weights = module.loss_weights(index)
            output = module.model(x, index, module.current_epoch, weights)
            loss = output.squared_error / count * module.trainer.world_size
            # Through Lightning, which scales the loss in 16-mixed. It needs no optimizer (None).
            with module.trainer.profiler.profile("backward"):
                strategy.backward(loss, None)
            error = error + output.squared_error.detach()
    return error
