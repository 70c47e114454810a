"""Are the weights the same, how often is a number read, and does a step grow with its samples?"""

from collections import Counter
from numbers import Real
from types import ModuleType
from typing import Any

import torch
from src.model.transformer import Block
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

STEPS, EVERY, TOKENS, PATCH = 10, 4, 6, 5
# On a GPU Python waits for what these give; the methods are seen before they run.
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}
METHODS = {"cpu", "numpy", "tolist", "__array__", "__repr__"}


class Operators(TorchDispatchMode):
    """Counts all operators, and those that read."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.reads = 0, Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.called += 1
        name = func.overloadpacket.__name__
        indices = args[1] if name == "index" else []
        chosen = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)
        if name in READS or chosen:  # how many are chosen decides about a shape
            self.reads[f"aten::{name}"] += 1
        return func(*args, **(kwargs or {}))


class Methods(TorchFunctionMode):
    """Counts those that read, too."""

    def __init__(self, reads: Counter[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in METHODS:
            self.reads[f"Tensor.{name}"] += 1
        return func(*args, **(kwargs or {}))


def batches(size: int, land: bool) -> list[Tensor]:
    """Fields with gaps; with ``land`` one of them has no value at all."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS, size, TOKENS, PATCH, generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.3] = torch.nan
    x[2, 1] = torch.nan if land else 1.0
    return list(x)


def new_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(PATCH, 12), Block(12, 2), nn.Linear(12, PATCH))


def expected(model: nn.Module, data: list[Tensor]) -> list[float]:
    """What the history has to be; trains the model."""
    optimizer, losses = optimizer_of(model), []
    for x in data:
        prediction = model(x.nan_to_num())
        own = [(p - s)[~s.isnan()].square().mean() for p, s in zip(prediction, x, strict=True)]
        loss = torch.stack([one for one in own if not one.isnan()]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [sum(losses[n - EVERY : n]) / EVERY for n in range(EVERY, STEPS + 1, EVERY)]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def shown(losses: list[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    torch.set_num_threads(1)  # faster for tensors this small, on a busy machine much faster

    def run(size: int, land: bool) -> tuple[nn.Module, Any, Operators]:
        model, data, operators = new_model(), batches(size, land), Operators()
        optimizer = optimizer_of(model)
        with Methods(operators.reads), operators:
            history = answer.train(model, optimizer, data, EVERY)
        return model, history, operators

    for land in (False, True):
        model, found, operators = run(4, land)
        where = "a sample is all land: " if land else ""
        right = new_model()
        losses = expected(right, batches(4, land))
        kinds = {type(loss).__name__ for loss in found if not isinstance(loss, Real)}
        assert not kinds, f"the losses are {', '.join(kinds)}s, and not numbers"
        assert len(found) == len(losses), f"of {STEPS} steps {len(found)} losses come, not 2"
        broken = sum(int(weight.isnan().sum()) for weight in model.parameters())
        assert not broken, f"{where}{broken} weights are NaN; in the way back NaN times 0 is NaN"
        close = [abs(one - other) < 1e-4 for one, other in zip(found, losses, strict=True)]
        assert all(close), f"{where}the losses are {shown(found)}, and not {shown(losses)}"
        pairs = zip(model.parameters(), right.parameters(), strict=True)
        differs = max((one - other).abs().max().item() for one, other in pairs)
        assert differs < 1e-4, f"{where}the losses are right, but weights differ by {differs:.0e}"
    reads, allowed = operators.reads, STEPS // EVERY
    assert reads.total() <= allowed, (
        f"in {STEPS} steps Python waits for {reads.total()} numbers ({', '.join(reads)}), where "
        f"{allowed} are enough: on a GPU the queue runs empty each time"
    )
    few, many = operators.called, run(16, land)[2].called
    assert many - few < STEPS, (
        f"a step calls {few // STEPS} operators for 4 samples, and {many // STEPS} for 16: a loop "
        "over the samples"
    )
