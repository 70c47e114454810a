"""What a training step computes and keeps, by formula and as counted, and what the machine can do.

  uv run python count_step.py                                 the default model
  uv run python count_step.py --model.embed_dim 256 --data.batch_size 64

FLOPs by a formula and by PyTorch's counter, memory by a formula and as measured, and the roofline:
how fast this machine multiplies matrices and copies memory, and which of the two the step is bound
by. The model FLOPs utilisation (MFU) is the step's FLOP/s as a share of the matrix product's.
"""

import sys
from collections.abc import Iterable
from typing import NamedTuple

import torch
from kept_memory import kept_bytes
from machine_speed import copy_speed, matrix_product, seconds
from src.config import parse_config
from src.device import choose_device, describe_device
from src.errors import one_line_errors
from src.model.pytorch_model import MaskedAutoencoder, Output
from src.model.transformer import Attention
from src.optim import make_optimizer
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


class Sizes(NamedTuple):
    """What the formulas need: tokens, widths, depths."""

    batch: int
    tokens: int  # N, patches of a sample
    visible: int  # K, of them
    patch: int  # P, values in a patch
    dim: int  # D
    depth: int
    heads: int
    decoder_dim: int  # E
    decoder_depth: int
    decoder_heads: int
    recompute: bool = False  # activation checkpointing


def block_flops(tokens: int, dim: int) -> float:
    """A transformer block, forward, for one sample.

    The linear maps: 3 for queries, keys and values, 1 for the output, 4 and 4 in the MLP, each
    2 x tokens x dim^2. Attention: scores and weighted sum, each 2 x tokens^2 x dim.
    """
    return 2 * tokens * dim**2 * (3 + 1 + 4 + 4) + attention_flops(tokens, dim)


def attention_flops(tokens: int, dim: int) -> float:
    return 2 * 2 * tokens**2 * dim


def step_flops(s: Sizes) -> tuple[float, float]:
    """FLOPs of a forward pass and of a training step, by formula.

    The gradients take twice the forward pass: once for the weights, once for the inputs. The first
    map's inputs need none. Fused attention computes its scores again instead of keeping them: 2.5
    times instead of twice. Activation checkpointing computes the blocks a second time, but for the
    last map of each, whose output no gradient needs.
    """
    embed = 2 * s.visible * 2 * s.patch * s.dim  # each patch comes with what of it is valid
    encoder = s.depth * block_flops(s.visible, s.dim)
    decoder = s.decoder_depth * block_flops(s.tokens, s.decoder_dim)
    ends = 2 * s.visible * s.dim * s.decoder_dim + 2 * s.tokens * s.decoder_dim * s.patch
    forward = embed + encoder + decoder + ends
    again = s.depth * attention_flops(s.visible, s.dim)
    again += s.decoder_depth * attention_flops(s.tokens, s.decoder_dim)
    last = s.depth * 2 * s.visible * 4 * s.dim**2
    last += s.decoder_depth * 2 * s.tokens * 4 * s.decoder_dim**2
    blocks = (encoder + decoder - last) * s.recompute
    return s.batch * forward, s.batch * (3 * forward - embed + again / 2 + blocks)


def block_floats(tokens: int, dim: int, heads: int) -> float:
    """What a block keeps of one sample for its gradients, in numbers.

    Per token: the inputs of both norms, of the four linear maps and of the GELU (2 + 1 + 1 + 1 + 4
    + 4 widths), queries, keys and values (3), and for each norm a mean and a deviation, for each
    head a sum of exponentials.
    """
    return tokens * (dim * (2 + 1 + 1 + 1 + 4 + 4 + 3) + 4 + heads)


def activation_bytes(s: Sizes) -> float:
    """What a forward pass keeps for the gradients, by formula.

    Outside the blocks: the patches, the inputs of both last norms, of the decoder's map and of the
    head, the tokens before they are put in order, the errors and which of them count (a byte each).
    With activation checkpointing a block keeps its input only.
    """
    ends: float = s.visible * (2 * s.patch + 2 * s.dim)
    ends += s.tokens * (3 * s.decoder_dim + s.patch + s.patch / 4)
    blocks: float
    if s.recompute:
        blocks = s.depth * s.visible * s.dim + s.decoder_depth * s.tokens * s.decoder_dim
    else:
        blocks = s.depth * block_floats(s.visible, s.dim, s.heads)
        blocks += s.decoder_depth * block_floats(s.tokens, s.decoder_dim, s.decoder_heads)
    return 4 * s.batch * (ends + blocks)


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


def moved_bytes(s: Sizes, parameters: int) -> float:
    """The least that a step moves: what is kept is written and read; weights are read twice,
    gradients written, read and cleared; AdamW reads and writes weights and its two averages.
    """
    return 2 * activation_bytes(s) + 4 * parameters * (2 + 3 + 6)


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
