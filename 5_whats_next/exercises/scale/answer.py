"""A gradient that is clipped in float16.

With 16-mixed the loss is multiplied by the scaler's scale before the backward pass, so that small
gradients do not become zero. ``train_step`` clips the gradient, and the curve looks healthy: AdamW
does not mind the size of a gradient. Look at what the optimiser is given, and repair it. A step
whose gradient is infinite is left out, and the scale is halved: that has to stay.
"""

from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


def train_step(loss: Tensor, optimizer: Optimizer, scaler: GradScaler, limit: float) -> Tensor:
    """One step with a gradient of norm ``limit`` at most; returns the norm before, for the log."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norm = clip_grad_norm_(parameters, limit)
    scaler.step(optimizer)
    scaler.update()
    return norm
