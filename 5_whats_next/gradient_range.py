"""Which gradients float16 loses, and what the scaler and bfloat16 do about it.

The smallest positive float16 is 6e-8, the largest 65504; bfloat16 has the range of float32, with
fewer digits. How large gradients are, is a matter of how the loss is counted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from short_training import DTYPES, ShortTraining
from torch import Tensor
from torch.amp import GradScaler

# Name, factor, and whether it is one of the sum; else it is one of the mean.
LOSSES = (
    ("mean", 1.0, False),
    ("mean, 10,000 times the batch", 1e-4, False),
    ("sum, 1,000 times the batch", 1e3, True),
)
# Name, precision, with a scaler.
WAYS = (
    ("float32", "32-true", False),
    ("float16", "16-mixed", False),
    ("float16 + GradScaler", "16-mixed", True),
    ("bfloat16", "bf16-mixed", False),
)


class Row(NamedTuple):
    """What became of the gradients in one way."""

    loss: str
    way: str
    lost: float  # share of the elements that are not zero in float32, and are zero here
    infinite: float  # share of the elements that are infinite or no number
    largest: float  # of the finite elements, in absolute value
    left_out: int  # steps until the scaler has found its scale
    scale: float  # that it has found


def survey(training: ShortTraining, x: Tensor, index: Tensor) -> list[Row]:
    """The gradients of a batch: samples ``x`` (B, V, T, H, W) with numbers ``index`` (B,)."""
    rows = []
    count = float(training.model.count_scored(x, index, 0))
    for name, factor, is_sum in LOSSES:
        factor = factor * count if is_sum else factor
        reference: Tensor | None = None
        for way, precision, scaled in WAYS:
            training.dtype = DTYPES[precision]
            scaler = GradScaler(x.device.type, enabled=scaled)
            gradient, left_out = gradient_of(training, x, index, factor, scaler)
            reference = gradient if reference is None else reference
            finite = torch.isfinite(gradient)
            rows.append(
                Row(
                    name,
                    way,
                    float(((reference != 0) & (gradient == 0)).sum() / (reference != 0).sum()),
                    float((~finite).double().mean()),
                    float(gradient[finite].abs().max()) if finite.any() else float("nan"),
                    left_out,
                    scaler.get_scale(),
                )
            )
    return rows


def gradient_of(
    training: ShortTraining, x: Tensor, index: Tensor, factor: float, scaler: GradScaler
) -> tuple[Tensor, int]:
    """All elements of the gradient, and how many steps the scaler has left out before."""
    # The scaler wants an optimiser, which is not to change the weights: with the rate 0.
    optimizer = torch.optim.SGD(training.model.parameters(), lr=0.0)
    left_out = 0
    while True:
        optimizer.zero_grad()
        scaler.scale(training.forward(x, index, 0) * factor).backward()
        before = scaler.get_scale()
        scaler.unscale_(optimizer)
        gradient = torch.cat([p.grad.flatten() for p in training.model.parameters()])  # type: ignore[union-attr]
        if not scaler.is_enabled():
            return gradient, 0
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:  # it has not left this one out
            return gradient, left_out
        left_out += 1


def table(rows: Sequence[Row]) -> str:
    """The table for people."""
    head = f"{'loss':<30}{'computed in':<22}{'to zero':>9}{'not finite':>12}"
    lines = [head + f"{'largest':>10}{'left out':>10}{'scale':>9}"]
    for row in rows:
        scaled = "Scaler" in row.way
        lines.append(
            f"{row.loss:<30}{row.way:<22}{row.lost:>8.1%}{row.infinite:>12.1%}{row.largest:>11.1e}"
            + (f"{row.left_out:>10}{row.scale:>9.5g}" if scaled else f"{'-':>10}{'-':>9}")
        )
    return "\n".join(lines)
