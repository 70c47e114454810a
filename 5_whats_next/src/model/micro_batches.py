"""A batch in parts, one after the other: less memory, more time, and the same gradients.

Also known as gradient accumulation. Lightning's ``accumulate_grad_batches`` takes the mean of the
parts' losses. That is the loss of the whole batch only if all parts have as many elements to
compare; with land in the fields, a part with little ocean would count as much as one with a lot.
Which elements are compared does not depend on the weights, so here they are counted first.

Shapes: B samples of this rank, V variables, T times, H latitudes, W longitudes.
"""

# To mypy each attribute of a module is a tensor or a module; ``model`` is a MaskedAutoencoder.
# mypy: disable-error-code="union-attr, operator"

from contextlib import nullcontext

import lightning as L
import torch
from torch import Tensor

from src.lightning_ranks import sum_over_ranks


def backward_in_parts(
    module: L.LightningModule, x: Tensor, index: Tensor, epoch: int, parts: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of squared errors and number of elements of all ranks, and this rank's share of the loss.

    The gradients of all parts but the last are computed here, and are in the weights afterwards;
    the gradient of the share of the loss is that of the last part. So nobody may set gradients to
    zero between this and the next backward pass.

    Args:
        module: its ``model`` is a MaskedAutoencoder.
        x: values (B, V, T, H, W).
        index: the samples' numbers (B,).
        epoch: decides the masks.
        parts: how many, up to B.
    """
    trainer = module.trainer
    count = sum_over_ranks(module.model.count_scored(x, index, epoch))[0].clamp(min=1)
    trainer.optimizers[0].zero_grad()
    error = torch.zeros((), device=x.device)  # of this rank, a number without gradient
    *others, last = zip(x.tensor_split(parts), index.tensor_split(parts), strict=True)
    # DDP sums gradients over the ranks once, in the last backward pass.
    waiting = getattr(trainer.strategy, "block_backward_sync", nullcontext)
    with waiting():
        for part in others:
            squared_error = module(*part, epoch).squared_error
            # DDP averages the gradients over the ranks: see AutoencoderModule.training_step.
            trainer.strategy.backward(squared_error * trainer.world_size / count, None)
            error += squared_error.detach()
    error = error + module(*last, epoch).squared_error
    return sum_over_ranks(error.detach())[0], count, error * trainer.world_size / count
