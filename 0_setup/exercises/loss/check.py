"""Is the loss right, and is its gradient?"""

from types import ModuleType

import torch


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 3, generator=generator)
    hidden = torch.tensor([[True, True, False, False], [True, False, True, False]])
    prediction = torch.randn(2, 4, 3, generator=generator, requires_grad=True)
    x[0, 0] = torch.nan  # all land
    x[1, 2, 1] = torch.nan  # a coast
    x[0, 3, 0] = torch.nan  # land that is not hidden
    counts = hidden[..., None] & ~x.isnan()
    expected = (prediction.detach() - x)[counts].square().mean()
    found = answer.loss(prediction, x, hidden)
    assert found.ndim == 0, f"the loss has the shape {tuple(found.shape)}, and is not one number"
    assert found.isclose(expected), f"the loss is {found:.4f}, and not {expected:.4f}"
    found.backward()
    gradient = prediction.grad
    assert gradient is not None
    infinite = int((~gradient.isfinite()).sum())
    assert not infinite, f"{infinite} values of the gradient are NaN: a NaN times 0 is NaN"
    assert (gradient[~counts] == 0).all(), "what does not count has a gradient"
    right = 2 * (prediction.detach() - x)[counts] / counts.sum()
    assert gradient[counts].allclose(right), "the gradient is not that of the mean squared error"
    nothing = answer.loss(prediction, torch.full_like(x, torch.nan), hidden)
    assert nothing == 0, f"a batch that is all land has the loss {nothing:.4f}, and not 0"
