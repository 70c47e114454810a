"""The encoder sees the visible patches only: at 75 % masking that is a quarter of the work.

B batch, N tokens, K visible tokens, P values in a patch, D width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from src.model.masking import Mask
from src.model.transformer import Block, init_weights, sincos_positions


class Encoder(nn.Module):
    """Embed the visible patches, add their positions, run the transformer blocks."""

    positions: Tensor

    def __init__(
        self, grid: Sequence[int], patch_dim: int, dim: int, depth: int, num_heads: int
    ) -> None:
        super().__init__()
        # Twice the patch: its values, and which of them are real. Without the second half the
        # network could not tell land (filled with 0) from water at the mean temperature (normalised
        # to 0).
        self.embed = nn.Linear(2 * patch_dim, dim)
        self.register_buffer("positions", sincos_positions(grid, dim), persistent=False)
        self.blocks = nn.ModuleList(Block(dim, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.apply(init_weights)

    def forward(self, values: Tensor, valid: Tensor, mask: Mask) -> Tensor:
        """From ``values`` and ``valid`` (B, N, P) to tokens (B, K, D), one for each slot."""
        # Take the patches that are shown.
        patches = torch.cat([values, valid.to(values.dtype)], dim=-1)  # (B, N, 2P)
        ids = mask.ids_keep[..., None].expand(-1, -1, patches.shape[-1])
        x = self.embed(patches.gather(1, ids)) + self.positions[mask.ids_keep]

        # Attention leaves out slots that only pad. But a sample with hardly any water has no other
        # slots, and attention over nothing can be NaN. So the first slot always counts; the decoder
        # throws it away if it is one that pads.
        attend = mask.slot_is_visible.clone()
        attend[:, 0] = True
        for block in self.blocks:
            x = block(x, attend)
        return self.norm(x)
