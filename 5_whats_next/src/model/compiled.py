"""torch.compile for the forward pass: one graph for training, and one for evaluation."""

from typing import Any

import torch
from torch import Tensor, nn

from src.errors import UserError


def compile_forward(model: nn.Module) -> None:
    """Compile ``model(x, index, epoch)`` in place; weights and checkpoints stay what they are.

    The compiler builds a graph for the arguments that it sees, and another one whenever some of
    them do not fit: a number that has changed, another batch size. So the epoch becomes a tensor,
    whose value it does not look at, and the batch size of the evaluation, where the last batch is
    smaller than the others, is declared to vary.

    Calling the model raises UserError if no C++ compiler is found that works.
    """
    graph = torch.compile(model.forward, fullgraph=True)

    def compiled(*arguments: Tensor) -> Any:
        try:
            return graph(*arguments)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            faults = torch._inductor.exc
            compiler = (faults.InvalidCxxCompiler, faults.CppCompileError)
            if not isinstance(error.inner_exception, compiler):
                raise
            raise UserError(
                "model.compile: torch.compile needs a C++ compiler that works, and found none; "
                "allowed: false, or one such as g++ (the variable CXX names another)"
            ) from error

    def forward(x: Tensor, index: Tensor, epoch: int | None = None) -> object:
        if epoch is None:
            for tensor in (x, index):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            return compiled(x, index)
        # Not torch.tensor, which copies the number: a GPU would have to be waited for.
        return compiled(x, index, torch.full((), epoch, device=x.device))

    model.forward = forward
