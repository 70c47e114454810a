"""The decoder without the work that changes nothing: the same weights, losses and gradients.

Two things follow from what a masked autoencoder is, and no compiler can know them. At first each
hidden patch is the same mask token at its place, whatever the sample is: its queries, keys and
values in the first block are computed once, and not for each sample. And the loss compares hidden
patches only: in the last block the visible ones need keys and values, but no queries, and nothing
that follows the attention.

Shapes: B batch, N tokens, K visible and M = N - K other tokens, P values in a patch, E width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from src.model.masking import Mask
from src.model.pytorch_decoder import Decoder
from src.model.transformer import Block, run_block, run_blocks

# Both blocks take other arguments than a Block. The work is in ``forward`` all the same, because
# fully_shard and activation checkpointing act where a block is called.


class SharedBlock(Block):
    """A first block, whose hidden tokens are those of a template (N, E)."""

    def forward(self, template: Tensor, visible: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        """Tokens (B, N, E), from the ``visible`` ones (B, K, E) at the places ``ids`` (B, K)."""
        qkv = scatter_tokens(self.qkv(template), self.qkv(visible), ids)
        q, k, v = qkv.chunk(3, dim=-1)
        x = scatter_tokens(template, visible, ids) + self.attn.attention(q, k, v)
        return x + self.mlp(self.norm2(x))

    def qkv(self, x: Tensor) -> Tensor:
        """Queries, keys and values (..., 3 E) of tokens (..., E)."""
        return self.attn.qkv(self.norm1(x))


class PartialBlock(Block):
    """A last block, which returns some of the tokens; those attend to all of them."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        """From all tokens (B, N, E) those at the places ``ids`` (B, M)."""
        own, dim = gather_tokens(x, ids), x.shape[-1]
        # A part of the weight, so its module is not called: hooks on it would not see this.
        weight, bias = self.attn.qkv.weight, self.attn.qkv.bias
        q = F.linear(self.norm1(own), weight[:dim], bias[:dim])
        k, v = F.linear(self.norm1(x), weight[dim:], bias[dim:]).chunk(2, dim=-1)
        x = own + self.attn.attention(q, k, v)
        return x + self.mlp(self.norm2(x))


class LeanDecoder(Decoder):
    """See Decoder. It predicts the hidden patches; its prediction of others means nothing."""

    def block_types(self, depth: int) -> list[type[Block]]:
        """See Decoder.block_types; a single block is a last one."""
        if depth < 2:
            return [PartialBlock] * depth
        return [SharedBlock, *[Block] * (depth - 2), PartialBlock]

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """See Decoder.forward."""
        template = self.mask_token + self.positions
        visible = self.visible(tokens, mask) + self.positions[mask.ids_keep]
        *others, last = self.blocks
        if others:
            first, *others = others
            x = run_block(first, template, visible, mask.ids_keep, recompute=self.recompute)
            x = run_blocks(others, x, recompute=self.recompute)
        else:
            x = scatter_tokens(template, visible, mask.ids_keep)
        x = run_block(last, x, mask.ids_hidden, recompute=self.recompute)
        predicted = self.head(self.norm(x))
        return scatter_tokens(predicted.new_zeros(len(template), 1), predicted, mask.ids_hidden)


def scatter_tokens(template: Tensor, tokens: Tensor, ids: Tensor) -> Tensor:
    """Copies of the template (N, E), one for each sample, with ``tokens`` (B, K, E) at ``ids``."""
    batch, _, dim = tokens.shape
    return template.expand(batch, -1, dim).scatter(1, ids[..., None].expand_as(tokens), tokens)


def gather_tokens(x: Tensor, ids: Tensor) -> Tensor:
    """Those tokens of ``x`` (B, N, E) that are at the places ``ids`` (B, M)."""
    # Not x.gather, which takes an index for each number of a token, and is slower.
    rows = ids + x.shape[1] * torch.arange(len(x), device=x.device)[:, None]
    return x.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, ids.shape)
