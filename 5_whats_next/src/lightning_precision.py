"""Mixed precision: what is allowed where, and the gradient scaler of 16-mixed.

float16 has no numbers below 6e-8, and many gradients are smaller. So the loss is multiplied by a
scale before the backward pass, and the gradients are divided by it before they are used
(https://docs.pytorch.org/docs/stable/notes/amp_examples.html). The scale starts at 65536, is halved
when a gradient is infinite (that step is left out), and doubled after 2000 steps without one.
"""

import lightning as L
from torch.amp import GradScaler
from torch.optim import Optimizer

from src.device import choose_device
from src.errors import UserError

# At this scale the scaler does nothing: what is not finite here is so without it as well.
LOWEST_SCALE = 1.0


def check_precision(precision: str | int | None, accelerator: object, strategy: object) -> None:
    """Raise UserError for float16 where Lightning has none.

    On a CPU it would compute in bfloat16 instead, and go on.
    """
    if not str(precision).startswith("16"):
        return
    name = str(accelerator)
    if name == "cpu" or (name == "auto" and choose_device("auto").type == "cpu"):
        raise UserError(
            f"trainer.precision: {precision} needs a GPU; allowed on the CPU: 32-true, bf16-mixed"
        )
    if strategy == "fsdp" and precision != "16-true":
        raise UserError(
            f"trainer.precision: {precision} does not work with strategy fsdp; "
            "allowed: 32-true, bf16-mixed"
        )


def unscale(trainer: L.Trainer, optimizer: Optimizer) -> GradScaler | None:
    """Make sure that the gradients are divided by the scale; returns the scaler, if there is one.

    Before it lets a module clip, Lightning divides the gradients, but not those of a fused
    optimiser, which can do it on the way. Clipped would be the gradients times the scale: far too
    much, and no error would say so.
    """
    scaler: GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
    # The mark that PyTorch sets on such an optimiser, and that Lightning looks for.
    if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
        scaler.unscale_(optimizer)
    return scaler


def step_is_left_out(scaler: GradScaler | None) -> bool:
    """Whether the scaler deals with a gradient that is not finite: a smaller scale may help.

    The scaler itself would go on for ever, halving the scale down to zero, and train nothing. The
    scale is in the checkpoint, so that this also holds across a resume.
    """
    return scaler is not None and scaler.get_scale() > LOWEST_SCALE
