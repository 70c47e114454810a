"""torch.compile for the forward pass: one graph for training, and one for evaluation."""

import torch
from torch import Tensor, nn


def compile_forward(model: nn.Module) -> None:
    """Compile ``model(x, index, epoch)`` in place; weights and checkpoints stay what they are.

    The compiler builds a graph for the arguments that it sees, and another one whenever some of
    them do not fit: a number that has changed, another batch size. So the epoch becomes a tensor,
    whose value it does not look at, and the batch size of the evaluation, where the last batch is
    smaller than the others, is declared to vary.
    """
    compiled = torch.compile(model.forward, fullgraph=True)

    def forward(x: Tensor, index: Tensor, epoch: int | None = None) -> object:
        if epoch is None:
            for tensor in (x, index):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            return compiled(x, index)
        # Not torch.tensor, which copies the number: a GPU would have to be waited for.
        return compiled(x, index, torch.full((), epoch, device=x.device))

    model.forward = forward
