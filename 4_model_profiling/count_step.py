"""What a training step computes and moves, and how fast this machine could be.

uv run python count_step.py                           the default model
uv run python count_step.py -c config/vit_base.yaml   one of the size of ViT-B

The roofline: a step takes at least as long as its operations at the speed of a large matrix
product, and at least as long as its bytes at the speed of a copy.
"""

from collections.abc import Callable

import torch
from instruments import (
    WARMUP,
    StepTimer,
    elapsed,
    make_parser,
    now,
    short_training,
)
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from src.run.errors import one_line_errors

DTYPES = {
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
}
# PyTorch 2.10 counts a GPU's attention, but not a CPU's.
aten = torch.ops.aten
CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: (
        sdpa_flop_count(*shapes[:3])
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: (
        sdpa_backward_flop_count(*shapes[:4])
    ),
}


def count_step(words: list[str]) -> tuple[int, int]:
    """The operations of a step, and the bytes that it moves at least.

    Operations are those of matrix products, convolutions and attention. Bytes: what autograd keeps
    for the backward pass, weights included, the gradients, and AdamW's two averages; each of them
    is written once and read once.

    Args:
        words: of lightning_train.py's command line.
    """
    kept: dict[int, int] = {}  # bytes of each storage, by its address

    def keep(tensor: Tensor) -> Tensor:
        """Note a tensor that autograd keeps; several may be views of one storage."""
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    counter = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
    # It does not see the operators of compiled code.
    eager = torch.compiler.set_stance("force_eager")
    with eager, counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        _, module = short_training(words, 1)
    weights = sum(weight.nbytes for weight in module.parameters())
    return counter.get_total_flops(), 2 * (sum(kept.values()) + 3 * weights)


def best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of ten times."""
    times = []
    for _ in range(10):
        start = now(device)
        work()
        times.append(elapsed(start, now(device)))
    return min(times) / 1e3


def machine_speed(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """FLOP/s of a matrix product; bytes/s of a copy, read and written ones together."""
    size = 2048 if device.type == "cpu" else 8192
    a = torch.randn(size, size, device=device, dtype=dtype)
    product = best_seconds(lambda: a @ a, device)
    b = torch.zeros(1 << 26, device=device)
    c = torch.zeros(1 << 26, device=device)
    copy = best_seconds(lambda: b.copy_(c), device)
    return 2 * size**3 / product, 2 * b.nbytes / copy


def main() -> None:
    """Count, measure, print."""
    options, overrides = make_parser(__doc__, steps=30).parse_known_args()
    words = [f"-c={options.config}", *overrides]
    operations, size = count_step(words)
    timer = StepTimer()
    trainer, _ = short_training(words, WARMUP + options.steps, [timer])
    measured = timer.milliseconds()["step"]
    speed, bandwidth = machine_speed(timer.device, DTYPES[str(trainer.precision)])
    computing = 1e3 * operations / speed
    moving = 1e3 * size / bandwidth

    print(f"a step     {operations / 1e9:.3f} GFLOP, {size / 1e6:.1f} MB")
    print(f"machine    {speed / 1e9:,.0f} GFLOP/s, {bandwidth / 1e9:.0f} GB/s")
    print(f"roofline   {computing:.1f} ms to compute, {moving:.1f} ms to move memory")
    share = computing / measured
    print(f"measured   {measured:.1f} ms; computing would be {share:.0%} of it")


if __name__ == "__main__":
    with one_line_errors():
        main()
