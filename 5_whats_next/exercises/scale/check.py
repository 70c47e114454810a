"""Is the gradient that the optimiser is given clipped without the scale?"""

from types import ModuleType

import torch
from torch import Tensor
from torch.amp import GradScaler

LIMIT, SCALE = 1.0, 65536.0  # the scale that GradScaler begins with


class Steps:
    """Weights that are 0 and change by the gradient: SGD with the rate 1, in two groups."""

    def __init__(self, answer: ModuleType) -> None:
        self.answer = answer
        self.weights = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)]
        self.optimizer = torch.optim.SGD([{"params": [one]} for one in self.weights], lr=1.0)
        self.scaler = GradScaler("cpu", init_scale=SCALE)

    def __call__(self, *gradient: float) -> tuple[Tensor, float]:
        """The gradient that the optimiser was given, and the norm for the log."""
        for weight in self.weights:
            weight.detach().zero_()
        loss = (torch.cat(self.weights) * torch.tensor(gradient)).sum()
        norm = self.answer.train_step(loss, self.optimizer, self.scaler, LIMIT)
        assert norm is not None, "train_step returns nothing, and so the log has no norm"
        return -torch.cat(self.weights).detach(), float(norm)


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    step = Steps(answer)
    given, logged = step(2.0, 3.0, 6.0)
    norm, right = given.norm().item(), torch.tensor([2.0, 3.0, 6.0]) / 7
    why = f": the scale of {SCALE:.0f} is in it when it is clipped, or is divided out twice"
    assert abs(norm - LIMIT) < 1e-3, (
        f"the optimiser is given a gradient of norm {norm:.2g}, and not {LIMIT:g}"
        f"{why if norm < 0.1 else ''}"
    )
    assert given.allclose(right, atol=1e-3), (
        f"the gradient [2, 3, 6] becomes {[round(one, 3) for one in given.tolist()]}, and not a "
        "seventh of it: it has one norm, of all weights together"
    )
    assert abs(logged - 7) < 1e-3, f"the norm for the log is {logged:.6g}, and not 7"
    norm = step(0.2, 0.3, 0.6)[0].norm().item()
    assert abs(norm - 0.7) < 1e-3, (
        f"a gradient of norm 0.7 is below the limit, and becomes {norm:.2g}"
    )
    given, _ = step(float("inf"), 0.0, 0.0)
    assert not given.any(), "a step whose gradient is infinite changes the weights"
    scale = step.scaler.get_scale()
    assert scale == SCALE / 2, (
        f"after a gradient that is infinite the scale is {scale:.0f}, and not {SCALE / 2:.0f}: the "
        "next step would be left out as well"
    )
    norm = step(0.2, 0.3, 0.6)[0].norm().item()
    assert abs(norm - 0.7) < 1e-3, (
        f"the step after one that was left out is given a gradient of norm {norm:.2g}, and not 0.7"
    )
