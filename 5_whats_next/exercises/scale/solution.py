"""The gradients are divided by the scale before anybody looks at how large they are."""

from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


def train_step(loss: Tensor, optimizer: Optimizer, scaler: GradScaler, limit: float) -> Tensor:
    """One step with a gradient of norm ``limit`` at most; returns the norm before, for the log."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # and scaler.step knows that it is done
    norm = clip_grad_norm_(parameters, limit)
    scaler.step(optimizer)
    scaler.update()
    return norm
