"""A loss with land in it.

NaN means: no value, as on land. ``loss`` is the mean squared error of the hidden patches' valid
values, and its value is right. Train with it, and every weight is NaN after one step. Look at the
gradient, and repair it. What should a batch without a single valid value give?
"""

from torch import Tensor


def loss(prediction: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
    """Mean squared error where ``hidden`` (B, N) and ``x`` is valid; prediction, x: (B, N, P)."""
    squared_error = (prediction - x) ** 2
    return squared_error[hidden].nanmean()
