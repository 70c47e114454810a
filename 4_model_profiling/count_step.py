"""What a training step computes and keeps, and how fast this machine could be.

uv run python count_step.py                                            the default model
uv run python count_step.py --model.embed_dim 256 --data.batch_size 64
"""

# The roofline: a step is bound by computing or by memory, whichever takes longer at the speeds that
# this machine reaches. MFU, model FLOPs utilisation: the step's FLOP/s as a share of the fastest
# matrix product's.

from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import pandas as pd
import torch
from instruments import build, describe, fit, options
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from src.errors import one_line_errors
from src.model.lightning_module import AutoencoderModule
from src.model.pytorch_model import MaskedAutoencoder
from src.step_timer import WARMUP, StepTimer


class CountStep(Callback):
    """Counts the operations of the first step, and the bytes that are kept for the gradients."""

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, *_: object) -> None:
        self.contexts = ExitStack()
        if trainer.global_step == 0:
            self.kept: dict[int, int] = {}  # each storage once
            self.weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
            hooks = torch.autograd.graph.saved_tensors_hooks(
                self.keep, lambda tensor: tensor
            )
            self.contexts.enter_context(hooks)
            self.counter = self.contexts.enter_context(FlopCounterMode(display=False))

    # Each storage of the step counts once; of micro-batches, those of all parts.
    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def on_train_batch_end(self, *_: object) -> None:
        self.contexts.close()


def block_flops(tokens: int, dim: int) -> float:
    """FLOPs of a transformer block in a training step, for one sample."""
    # Forward, the linear maps: 3 for queries, keys and values, 1 for the output, 4 and 4 in the
    # MLP, each 2 x tokens x dim^2. The gradients take twice that, for weights and for inputs.
    # Attention: scores and weighted sum, each 2 x tokens^2 x dim; its gradients take two and a half
    # times that, because the scores are computed again and not kept.
    return 3 * 2 * tokens * dim**2 * (3 + 1 + 4 + 4) + 3.5 * 2 * 2 * tokens**2 * dim


def step_flops(model: MaskedAutoencoder) -> float:
    """FLOPs of a training step for one sample, by formula."""
    encoder, decoder = model.encoder, model.decoder
    tokens, patch = len(encoder.positions), decoder.head.out_features
    visible = tokens - round(model.mask_ratio * tokens)
    dim, decoder_dim = encoder.embed.out_features, decoder.embed.out_features
    blocks = len(encoder.blocks) * block_flops(visible, dim)
    blocks += len(decoder.blocks) * block_flops(tokens, decoder_dim)
    # The input of a patch is its values and which of them are valid; the input needs no gradient.
    embed = 2 * 2 * visible * (2 * patch) * dim
    projection, head = visible * dim * decoder_dim, tokens * decoder_dim * patch
    return embed + blocks + 3 * 2 * (projection + head)


def machine_speed(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """FLOP/s of a large matrix product, and bytes/s of a copy, read and written ones together."""
    size = 2048 if device.type == "cpu" else 8192
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    c, d = torch.zeros(2, 1 << 26, device=device)
    names, threads = {"a": a, "b": b, "c": c, "d": d}, torch.get_num_threads()
    product, copy = (
        Timer(work, globals=names, num_threads=threads)
        .blocked_autorange(min_run_time=1)
        .median
        for work in ("a @ b", "c.copy_(d)")
    )
    return 2 * size**3 / product, 2 * c.nbytes / copy


def main() -> None:
    """Train some steps, count, and print."""
    chosen, overrides = options(__doc__).parse_known_args()
    counting = CountStep()
    with TemporaryDirectory() as run_folder:
        cli = build(
            chosen, [*overrides, "--trainer.max_steps=30"], run_folder, [counting]
        )
        device = cli.trainer.strategy.root_device
        timer = StepTimer(device.type)
        fit(cli, timer)
    flops, kept = counting.counter.get_total_flops(), sum(counting.kept.values())
    # Weights, gradients, AdamW's two averages.
    state = sum(4 * weights.nbytes for weights in cli.model.parameters())
    seconds = pd.DataFrame(timer.seconds())["total"][WARMUP:].median()
    dtypes = {"32": torch.float32, "bf16-mixed": torch.bfloat16}
    product, copy = machine_speed(device, dtypes.get(chosen.precision, torch.float16))
    # The least that a step moves: what is kept, and the state, are each written and read once.
    compute, move = flops / product, 2 * (kept + state) / copy
    print(describe(cli.trainer, chosen.precision))
    print(f"counted     {flops / 1e9:.3f} GFLOP")
    if isinstance(cli.model, AutoencoderModule):
        formula = cli.trainer.datamodule.batch_size * step_flops(cli.model.model)
        print(f"by formula  {formula / 1e9:.3f} GFLOP")
    print(
        f"memory      {kept / 1e6:.1f} MB for the gradients, {state / 1e6:.1f} of weights, AdamW"
    )
    print(
        f"machine     {product / 1e9:,.0f} GFLOP/s in a matrix product, {copy / 1e9:.0f} GB/s"
    )
    print(f"measured    {1e3 * seconds:.1f} ms, MFU {compute / seconds:.1%}")
    bound = "computing" if compute > move else "memory"
    print(f"at best     {1e3 * max(compute, move):.1f} ms, bound by {bound}")


if __name__ == "__main__":
    with one_line_errors():
        main()
