"""What a forward pass keeps for the gradients, as measured."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def kept_bytes(forward: Callable[[], Tensor], own: Iterable[Tensor]) -> int:
    """Bytes that a forward pass keeps for the gradients, each storage once.

    Args:
        forward: computes the loss.
        own: weights, and whatever else there is anyway, which does not count.
    """
    mine = {tensor.untyped_storage().data_ptr() for tensor in own}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in mine:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()  # alive, so that no address is used twice
    del loss
    return sum(found.values())
