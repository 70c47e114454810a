"""Transformer blocks and fixed positions, shared by the encoder and the decoder.

B batch, N tokens, D width, A attention heads.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from src.run.errors import UserError


class Attention(nn.Module):
    """Multi-head self-attention over tokens (B, N, D)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads or dim % 2:
            raise UserError(
                f"model: width {dim} is odd, or no multiple of {num_heads} heads"
            )
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attend: Tensor | None = None) -> Tensor:
        """``attend`` (B, N) is False for tokens that nobody may look at."""
        split = "b n (three a d) -> three b a n d"
        q, k, v = rearrange(self.qkv(x), split, three=3, a=self.num_heads)
        mask = None if attend is None else attend[:, None, None, :]
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(rearrange(x, "b a n d -> b n (a d)"))


class Block(nn.Module):
    """Pre-norm transformer block (Vision Transformer, https://arxiv.org/abs/2010.11929)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, x: Tensor, attend: Tensor | None = None) -> Tensor:
        """Tokens (B, N, D) to tokens; ``attend`` (B, N) as in Attention."""
        x = x + self.attn(self.norm1(x), attend)
        return x + self.mlp(self.norm2(x))


def sincos_positions(grid: Sequence[int], dim: int) -> Tensor:
    """Fixed positions (N, D) of a (time, lat, lon) grid of patches; D has to be even, 6 or more.

    Sines and cosines at falling frequencies, as in https://arxiv.org/abs/1706.03762, section 3.5.
    Each axis gets its own third of the width, so any rectangular grid works, and an axis of length
    one costs nothing but its third.
    """
    # Even, for sine and cosine. Time gets what the division leaves.
    third = dim // 6 * 2
    widths = (dim - 2 * third, third, third)
    # (N, 3), row by row.
    places = torch.cartesian_prod(*(torch.arange(size) for size in grid))
    parts = []
    for place, width in zip(places.T, widths, strict=True):
        frequency = 10000.0 ** -(torch.arange(width // 2) / (width // 2))
        angle = place[:, None] * frequency
        parts += [angle.sin(), angle.cos()]
    return torch.cat(parts, dim=1)


def init_weights(module: nn.Module) -> None:
    """Xavier weights and zero biases, as in https://github.com/facebookresearch/mae."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
