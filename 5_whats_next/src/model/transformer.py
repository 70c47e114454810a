"""Transformer blocks and fixed positions, shared by the encoder and the decoder.

Shapes: B batch, N tokens, D width, A attention heads.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Multi-head self-attention over tokens (B, N, D)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attend: Tensor | None = None) -> Tensor:
        """``attend`` (B, N) is False for tokens that nobody may look at."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.attention(q, k, v, attend)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, attend: Tensor | None = None) -> Tensor:
        """The queries ``q`` (B, M, D) over the keys and values (B, N, D), then the output map."""
        q, k, v = (rearrange(x, "b n (a d) -> b a n d", a=self.num_heads) for x in (q, k, v))
        mask = None if attend is None else attend[:, None, None, :]
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(rearrange(x, "b a n d -> b n (a d)"))


class Block(nn.Module):
    """Pre-norm transformer block (Vision Transformer, https://arxiv.org/abs/2010.11929)."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        hidden_dim = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, dim))

    def forward(self, x: Tensor, attend: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), attend)
        return x + self.mlp(self.norm2(x))


def run_block(block: nn.Module, *inputs: Tensor | None, recompute: bool) -> Tensor:
    """``block`` of its ``inputs``.

    ``recompute`` keeps only the input of each block for the gradients, and computes the rest a
    second time when they need it (activation checkpointing, https://arxiv.org/abs/1604.06174).
    """
    if recompute and torch.is_grad_enabled():
        # There is nothing random in a block, so no generator's state has to be kept.
        return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
    return block(*inputs)


def run_blocks(
    blocks: Iterable[nn.Module], x: Tensor, attend: Tensor | None = None, recompute: bool = False
) -> Tensor:
    """Tokens (B, N, D) through all ``blocks``."""
    for block in blocks:
        x = run_block(block, x, attend, recompute=recompute)
    return x


def sincos_positions(grid: Sequence[int], dim: int) -> Tensor:
    """Fixed sine-cosine positions (N, D) of a (time, lat, lon) grid of patches, row by row.

    Each axis gets its own third of the width, so any rectangular grid works and an axis of length
    one costs nothing but its share. ``dim`` must be even and at least 6.
    """
    share = dim // 6 * 2
    t, h, w = grid
    rows = sincos(t, dim - 2 * share), sincos(h, share), sincos(w, share)
    return torch.cat(
        [
            repeat(rows[0], "t d -> (t h w) d", h=h, w=w),
            repeat(rows[1], "h d -> (t h w) d", t=t, w=w),
            repeat(rows[2], "w d -> (t h w) d", t=t, h=h),
        ],
        dim=1,
    )


def sincos(length: int, dim: int) -> Tensor:
    """Sines and cosines (length, dim) of the positions 0, 1, ... at falling frequencies.

    As in "Attention is all you need", https://arxiv.org/abs/1706.03762, section 3.5.
    """
    frequency = 10000.0 ** -(torch.arange(dim // 2) / (dim // 2))
    angle = torch.arange(length)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def init_weights(module: nn.Module) -> None:
    """Xavier weights and zero biases, as in https://github.com/facebookresearch/mae."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
