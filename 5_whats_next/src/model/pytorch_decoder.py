"""The decoder puts a mask token in the place of each patch that was not shown, and predicts all.

B batch, N tokens, K visible tokens, P values in a patch, D width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from src.model.masking import Mask
from src.model.transformer import Block, init_weights, sincos_positions


class Decoder(nn.Module):
    """Restore the order of the patches, run a few transformer blocks, predict the values.

    Usually smaller than the encoder: it is thrown away when the encoder is used for something else.
    """

    positions: Tensor

    def __init__(
        self,
        grid: Sequence[int],
        patch_dim: int,
        in_dim: int,
        dim: int,
        depth: int,
        num_heads: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(dim))
        self.register_buffer("positions", sincos_positions(grid, dim), persistent=False)
        self.blocks = nn.ModuleList(Block(dim, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, patch_dim)
        self.apply(init_weights)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """From the visible ``tokens`` (B, K, D) to predicted values (B, N, P) of all patches."""
        # A slot that shows a patch keeps its token. One that only pads may hold a hidden patch: it
        # gets the mask token, or the patch's values would leak.
        visible = torch.where(
            mask.slot_is_visible[..., None], self.embed(tokens), self.mask_token
        )

        # The mask token in place of all others, then each patch back to where it was.
        batch, num_tokens = mask.ids_restore.shape
        num_masked = num_tokens - visible.shape[1]
        masked = self.mask_token.expand(batch, num_masked, -1)
        shuffled = torch.cat([visible, masked], dim=1)
        ids = mask.ids_restore[..., None].expand(-1, -1, shuffled.shape[-1])
        x = shuffled.gather(1, ids) + self.positions

        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
