"""A masked autoencoder for fields with missing values (He et al., https://arxiv.org/abs/2111.06377).

Hide most patches of a field, show the rest to an encoder, let a decoder fill the gaps. Patches are
three-dimensional (time, lat, lon); an image is the case of one time step.

B batch, V variables, T times, H latitudes, W longitudes; N patches, P values in a patch.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from jsonargparse.typing import OpenUnitInterval, PositiveInt
from torch import Tensor, nn

from src.model.masking import random_mask
from src.model.pytorch_decoder import Decoder
from src.model.pytorch_encoder import Encoder
from src.run.errors import UserError

PATCHES = "b v (t pt) (h ph) (w pw) -> b (t h w) (v pt ph pw)"
FIELDS = "b (t h w) (v pt ph pw) -> b v (t pt) (h ph) (w pw)"


class Output(NamedTuple):
    """What one forward pass returns.

    Sum and count instead of a mean: batches differ in how much land they have, and the mean of
    several batches' means is not the mean of all values.
    """

    squared_error: Tensor  # () summed over the hidden, valid elements of the batch
    valid_count: Tensor  # () number of these elements, or the sum of their weights
    prediction: Tensor  # (B, V, T, H, W) in the units of x, for every element
    hidden: Tensor  # (B, V, T, H, W) True where the model did not see x


class MaskedAutoencoder(nn.Module):
    """Reconstruct the hidden patches of normalised fields.

    Args:
        sample_shape: (V, T, H, W) of one sample; taken from the dataset.
        patch_size: times, latitudes and longitudes in one patch; must divide the window.
        mask_ratio: share of the valid patches that is hidden.
        embed_dim: width of the encoder; even, and a multiple of num_heads.
        depth: number of encoder blocks.
        num_heads: attention heads of the encoder.
        decoder_embed_dim: width of the decoder, with its own depth and heads.
        seed: seed of the training masks.
    """

    def __init__(
        self,
        sample_shape: Sequence[int],
        patch_size: tuple[PositiveInt, PositiveInt, PositiveInt] = (3, 4, 4),
        mask_ratio: OpenUnitInterval = 0.75,
        embed_dim: PositiveInt = 64,
        depth: PositiveInt = 2,
        num_heads: PositiveInt = 4,
        decoder_embed_dim: PositiveInt = 64,
        decoder_depth: PositiveInt = 2,
        decoder_num_heads: PositiveInt = 4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        num_variables, *window = sample_shape
        grid = []  # patches along time, latitude, longitude
        for size, patch in zip(window, patch_size, strict=True):
            if size % patch:
                raise UserError(
                    f"model.patch_size: {patch_size} does not divide {tuple(window)}"
                )
            grid.append(size // patch)
        num_tokens = math.prod(grid)
        num_hidden = round(mask_ratio * num_tokens)
        if not 0 < num_hidden < num_tokens:  # or there is nothing to learn
            raise UserError(
                f"model.mask_ratio: {mask_ratio} hides {num_hidden} of {num_tokens}"
            )
        for dim, heads in (
            (embed_dim, num_heads),
            (decoder_embed_dim, decoder_num_heads),
        ):
            if dim % heads or dim % 2 or dim < 6:
                raise UserError(
                    f"model: width {dim} is odd, < 6 or no multiple of {heads} heads"
                )

        # The lengths of the letters in PATCHES and FIELDS.
        sizes = (num_variables, *grid, *patch_size)
        self.axes = dict(
            zip(("v", "t", "h", "w", "pt", "ph", "pw"), sizes, strict=True)
        )
        self.random_mask = random_mask  # another way to draw can be put here
        self.mask_ratio = mask_ratio
        self.seed = seed
        patch_dim = num_variables * math.prod(patch_size)
        self.encoder = Encoder(grid, patch_dim, embed_dim, depth, num_heads)
        self.decoder = Decoder(
            grid,
            patch_dim,
            embed_dim,
            decoder_embed_dim,
            decoder_depth,
            decoder_num_heads,
        )

    def forward(
        self,
        x: Tensor,
        index: Tensor,
        epoch: int | None = None,
        weights: Tensor | None = None,
    ) -> Output:
        """Reconstruct ``x`` (B, V, T, H, W), NaN where there is no value; ``index`` (B,).

        The samples' numbers and the epoch decide what is hidden. Without an epoch it is the same in
        every epoch, for validation. ``weights`` of the squared errors have a shape that expands to
        that of ``x``.
        """
        patches = rearrange(x, PATCHES, **self.axes)  # (B, N, P)
        valid = ~patches.isnan()
        values = patches.where(valid, 0.0)
        mask = self.random_mask(valid.any(-1), index, self.seed, epoch, self.mask_ratio)

        tokens = self.encoder(values, valid, mask)  # (B, K, D), of the visible patches
        prediction = self.decoder(tokens, mask)  # (B, N, P), all patches

        hidden = mask.hidden[..., None].expand_as(valid)
        scored = hidden & valid
        error = torch.where(scored, prediction - values, 0.0).float().square()
        if weights is not None:
            weights = rearrange(weights.expand_as(x), PATCHES, **self.axes)
            error = error * weights
            scored = scored * weights
        return Output(
            squared_error=error.sum(),
            valid_count=scored.sum(),
            prediction=rearrange(prediction, FIELDS, **self.axes),
            hidden=rearrange(hidden, FIELDS, **self.axes),
        )
