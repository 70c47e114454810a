"""torch.compile for the forward pass of the training."""

from types import MethodType

import torch
from torch import Tensor, nn

from src.model.pytorch_model import Output


def compile_forward(model: nn.Module) -> None:
    """Compile ``model(x, index, epoch, weights)`` in place; checkpoints stay what they are."""
    plain = type(model).forward
    # fullgraph: an error instead of a graph in many pieces, which would gain little.
    graph = torch.compile(plain, fullgraph=True)

    def forward(
        self: nn.Module,
        x: Tensor,
        index: Tensor,
        epoch: int | None = None,
        weights: Tensor | None = None,
    ) -> Output:
        # Validation has a smaller last batch: compiling again would take longer than it gains.
        if epoch is None:
            return plain(self, x, index)
        # A number would be a part of the first graph, so epoch 1 would compile again; a tensor
        # is an input. And torch.tensor(epoch) would copy it to a GPU, and wait.
        return graph(self, x, index, torch.full((), epoch, device=x.device), weights)

    # A method: a copy of the model, such as an average of its weights, has its own weights then.
    model.forward = MethodType(forward, model)
