"""What a training step computes and keeps, and how fast this machine could be.

uv run python count_step.py                                            the default model
uv run python count_step.py -c config/vit_base.yaml                    one of the size of ViT-B

The roofline: a step is bound by computing or by memory, whichever takes longer at the speeds that
this machine reaches. MFU, model FLOPs utilisation: the step's FLOP/s as a share of the fastest
matrix product's.
"""

from contextlib import ExitStack
from typing import Any

import lightning as L
import torch
from instruments import DTYPES, Training, make_parser
from lightning.pytorch.callbacks import Callback
from timing_benchmark import milliseconds
from torch import Tensor
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from src.run.errors import UserError, one_line_errors
from src.run.step_timer import WARMUP, StepTimer


class CountStep(Callback):
    """Counts the operations of the first step, and the bytes that are kept for the gradients."""

    def __init__(self) -> None:
        self.counter = FlopCounterMode(display=False)
        self.weights: set[int] = set()  # addresses of their storages
        self.saved_bytes: dict[int, int] = {}  # bytes of each storage, by address
        self.contexts = ExitStack()

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, *_: object) -> None:
        """Watch the first step."""
        if trainer.global_step > 0:
            return
        self.weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
        hooks = torch.autograd.graph.saved_tensors_hooks(
            self.keep, lambda tensor: tensor
        )
        self.contexts.enter_context(hooks)
        self.contexts.enter_context(self.counter)

    def keep(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd keeps for the backward pass."""
        # Several tensors may be views of one storage. Micro-batches use addresses again, so with
        # them the sum lies between that of one part and that of all.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def on_train_batch_end(self, *_: object) -> None:
        """The first step is over."""
        self.contexts.close()


def seconds_of(work: str, **tensors: Tensor) -> float:
    """The shortest time of a line of code: what the machine can do, and not what it does now."""
    timer = Timer(work, globals=tensors, num_threads=torch.get_num_threads())
    return float(min(timer.blocked_autorange(min_run_time=1).times))


def machine_speed(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """FLOP/s of a large matrix product, and bytes/s of a copy, read and written ones together."""
    size = 2048 if device.type == "cpu" else 8192
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    product = seconds_of("a @ b", a=a, b=b)
    c = torch.zeros(1 << 26, device=device)
    d = torch.zeros(1 << 26, device=device)
    copy = seconds_of("c.copy_(d)", c=c, d=d)
    return 2 * size**3 / product, 2 * c.nbytes / copy


def bytes_of_state(training: Training) -> int:
    """Weights, their gradients, and what the optimisers keep."""
    total = 0
    for weights in training.module.parameters():
        total += weights.nbytes * (1 + weights.requires_grad)
    for optimizer in training.trainer.optimizers:
        for averages in optimizer.state.values():
            total += sum(t.nbytes for t in averages.values() if isinstance(t, Tensor))
    return total


def main() -> None:
    """Train some steps, count, and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=30, help="training steps")
    options, overrides = parser.parse_known_args()
    counting = CountStep()
    training = Training(options, overrides, [counting], max_steps=options.steps)
    if training.module.hparams.get("compile"):
        raise UserError("--model.compile: the counter sees no compiled operators")
    timer = StepTimer(training.device.type)
    training.fit(timer)

    flops = counting.counter.get_total_flops()
    saved_bytes = sum(counting.saved_bytes.values())
    state = bytes_of_state(training)
    steps = milliseconds(timer)["total"].iloc[WARMUP:]
    if steps.empty or not flops:
        raise UserError(f"no operation counted, or no step after the first {WARMUP}")
    if not training.trainer.is_global_zero:
        return
    step_ms = steps.mean()
    product, copy = machine_speed(training.device, DTYPES[options.precision])
    computing = flops / product
    # The least that a step moves: what is kept, and the state, are each written and read once.
    moving = 2 * (saved_bytes + state) / copy

    print(training.describe())
    print(f"counted     {flops / 1e9:.3f} GFLOP")
    print(f"kept        {saved_bytes / 1e6:.1f} MB for the gradients")
    print(f"state       {state / 1e6:.1f} MB of weights, gradients, optimizer")
    print(f"machine     {product / 1e9:,.0f} GFLOP/s in a matrix product")
    print(f"            {copy / 1e9:.0f} GB/s in a copy")
    print(f"measured    {step_ms:.1f} ms, MFU {1e3 * computing / step_ms:.1%}")
    print(f"at best     {1e3 * computing:.1f} ms to compute, and")
    print(f"            {1e3 * moving:.1f} ms or more to move memory")


if __name__ == "__main__":
    with one_line_errors():
        main()
