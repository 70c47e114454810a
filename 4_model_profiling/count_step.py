"""What a training step computes and keeps, by formula and as counted, and what the machine can do.

  uv run python count_step.py                                 the default model
  uv run python count_step.py --model.embed_dim 256 --data.batch_size 64

FLOPs by a formula and by PyTorch's counter, memory by a formula and as measured, and the roofline:
how fast this machine multiplies matrices and copies memory, and which of the two the step is bound
by. The model FLOPs utilisation (MFU) is the step's FLOP/s as a share of the matrix product's.
"""

import sys
from collections.abc import Iterable

import torch
from kept_memory import kept_bytes
from machine_speed import copy_speed, matrix_product, seconds
from src.config import parse_config
from src.device import choose_device, describe_device
from src.errors import one_line_errors
from src.model.lean_decoder import LeanDecoder
from src.model.pytorch_model import MaskedAutoencoder, Output
from src.model.transformer import Attention
from src.optim import make_optimizer
from step_formulas import Sizes, activation_bytes, moved_bytes, step_flops
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def sizes_of(model: MaskedAutoencoder, batch: int) -> Sizes:
    """The sizes of a model."""
    encoder, decoder = model.encoder, model.decoder
    tokens = encoder.positions.shape[0]
    return Sizes(
        batch=batch,
        tokens=tokens,
        visible=tokens - round(model.mask_ratio * tokens),
        patch=decoder.head.out_features,
        dim=encoder.embed.out_features,
        depth=len(encoder.blocks),
        heads=heads_of(encoder.blocks),
        decoder_dim=decoder.embed.out_features,
        decoder_depth=len(decoder.blocks),
        decoder_heads=heads_of(decoder.blocks),
        recompute=encoder.recompute,
        lean=isinstance(decoder, LeanDecoder),
    )


def heads_of(blocks: Iterable[nn.Module]) -> int:
    """Attention heads of a stack of blocks, which all have the same."""
    return next(
        module.num_heads
        for block in blocks
        for module in block.modules()
        if isinstance(module, Attention)
    )


def loss_of(output: Output) -> Tensor:
    return output.squared_error / output.valid_count.clamp(min=1)


def counted_flops(model: MaskedAutoencoder, x: Tensor, index: Tensor) -> tuple[float, float]:
    """The same as ``step_flops``, counted by PyTorch while it runs."""
    with FlopCounterMode(display=False) as counter:
        loss = loss_of(model(x, index, 0))
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()


def main() -> int:
    """Read the settings, count, measure, print. Returns the exit code."""
    config, _ = parse_config(__doc__)
    device = choose_device(config.trainer.accelerator)
    dataset = config.data.dataset("train")
    model = MaskedAutoencoder(dataset.sample_shape, **vars(config.model)).to(device)
    optimizer, _ = make_optimizer(model, 1000, **vars(config.optimizer))
    samples = [dataset[i % len(dataset)] for i in range(config.data.batch_size)]
    x = torch.stack([torch.as_tensor(sample) for sample, _ in samples]).to(device)
    index = torch.tensor([number for _, number in samples], device=device)
    s, parameters = sizes_of(model, len(x)), sum(p.numel() for p in model.parameters())
    print(f"{describe_device(device)}; {parameters:,} parameters, batches of {len(x)}")

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(x, index, 0)).backward()
        optimizer.step()

    print(f"{'GFLOP':<28}{'formula':>10}{'counted':>10}{'ratio':>8}")
    formula, counted = step_flops(s), counted_flops(model, x, index)
    for name, one, other in zip(("forward pass", "training step"), formula, counted, strict=True):
        print(f"{name:<28}{one / 1e9:>10.3f}{other / 1e9:>10.3f}{one / other:>8.3f}")
    print(f"{'MB':<28}{'formula':>10}{'measured':>10}{'ratio':>8}")
    kept = kept_bytes(lambda: loss_of(model(x, index, 0)), model.parameters())
    print(
        f"{'kept for the gradients':<28}{activation_bytes(s) / 1e6:>10.1f}{kept / 1e6:>10.1f}"
        f"{activation_bytes(s) / kept:>8.3f}"
    )
    print(f"{'weights, gradients, AdamW':<28}{16 * parameters / 1e6:>10.1f}")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated()
        whole = activation_bytes(s) + 16 * parameters
        print(f"{'peak':<28}{whole / 1e6:>10.1f}{peak / 1e6:>10.1f}{whole / peak:>8.3f}")

    product, copy, took = matrix_product(device), copy_speed(device), seconds(step, device, 20)
    moved, flops = moved_bytes(s, parameters), formula[1]
    print(f"matrix product  {product / 1e9:>10,.0f} GFLOP/s")
    print(f"copy            {copy / 1e9:>10,.1f} GB/s")
    print(f"step            {1e3 * took:>10,.1f} ms: {flops / took / 1e9:,.0f} GFLOP/s")
    print(f"MFU             {flops / took / product:>10.1%} of the matrix product")
    ridge, intensity = product / copy, flops / moved
    bound = "computing" if intensity > ridge else "memory"
    least = max(flops / product, moved / copy)
    print(
        f"intensity       {intensity:>10.1f} FLOP/byte; from {ridge:.1f} on computing is the limit"
    )
    print(f"at best         {1e3 * least:>10,.1f} ms, bound by {bound}")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
