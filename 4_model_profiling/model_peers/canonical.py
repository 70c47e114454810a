"""The masked autoencoder as its paper and its public code have it, for the comparison only.

He et al., https://arxiv.org/abs/2111.06377: patches by a convolution, a class token, positions from
a table, masks from random noise that is sorted, attention with its matrix of scores in memory, the
loss as a mean over the hidden patches. It knows no missing values.

Shapes: B images, C channels, N patches, K visible ones, P values in a patch, D width.
"""

import torch
from torch import Tensor, nn


class FullAttention(nn.Module):
    """Attention whose scores (B, heads, N, N) are all in memory at once."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (self.scale * (q @ k.transpose(-2, -1))).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, dim))


class FullBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), FullAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CanonicalMAE(nn.Module):
    """Square images (B, C, size, size) in; the loss and the masks out."""

    def __init__(
        self,
        size: int,
        patch: int,
        channels: int,
        dim: int,
        depth: int,
        heads: int,
        decoder_dim: int,
        decoder_depth: int,
        decoder_heads: int,
        mask_ratio: float,
    ) -> None:
        super().__init__()
        tokens, values = (size // patch) ** 2, channels * patch**2
        self.patch, self.keep = patch, int(tokens * (1 - mask_ratio))
        self.embed = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, tokens + 1, dim), requires_grad=False)
        self.blocks = nn.Sequential(*(FullBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.decoder_embed = nn.Linear(dim, decoder_dim)
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, decoder_dim))
        self.decoder_positions = nn.Parameter(
            torch.randn(1, tokens + 1, decoder_dim), requires_grad=False
        )
        self.decoder_blocks = nn.Sequential(
            *(FullBlock(decoder_dim, decoder_heads) for _ in range(decoder_depth))
        )
        self.decoder_norm = nn.LayerNorm(decoder_dim, eps=1e-6)
        self.head = nn.Linear(decoder_dim, values)

    def patches(self, images: Tensor) -> Tensor:
        """The values (B, N, P) of all patches, row by row."""
        batch, channels, height, width = images.shape
        grid = images.reshape(
            batch, channels, height // self.patch, self.patch, width // self.patch, self.patch
        )
        return grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and which patches (B, N) were hidden."""
        x = self.embed(images).flatten(2).transpose(1, 2) + self.positions[:, 1:]
        batch, tokens, dim = x.shape
        order = torch.rand(batch, tokens, device=x.device).argsort(dim=1)
        back = order.argsort(dim=1)
        x = x.gather(1, order[:, : self.keep, None].expand(-1, -1, dim))
        hidden = torch.ones(batch, tokens, device=x.device)
        hidden[:, : self.keep] = 0
        hidden = hidden.gather(1, back)
        first = (self.cls_token + self.positions[:, :1]).expand(batch, -1, -1)
        x = self.decoder_embed(self.norm(self.blocks(torch.cat([first, x], dim=1))))
        masks = self.mask_token.expand(batch, tokens - self.keep, -1)
        rest = torch.cat([x[:, 1:], masks], dim=1)
        rest = rest.gather(1, back[..., None].expand(-1, -1, rest.shape[-1]))
        x = torch.cat([x[:, :1], rest], dim=1) + self.decoder_positions
        predicted = self.head(self.decoder_norm(self.decoder_blocks(x)))[:, 1:]
        error = (predicted - self.patches(images)).square().mean(dim=-1)
        return (error * hidden).sum() / hidden.sum(), hidden
