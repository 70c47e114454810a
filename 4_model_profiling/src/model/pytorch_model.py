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
    valid_count: Tensor  # () how many elements that sum runs over
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
        patch_size: tuple[int, int, int] = (3, 4, 4),
        mask_ratio: float = 0.75,
        embed_dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        decoder_embed_dim: int = 64,
        decoder_depth: int = 2,
        decoder_num_heads: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        num_variables, *window = sample_shape
        grid = []  # patches along time, latitude, longitude
        for size, patch in zip(window, patch_size, strict=True):
            if patch < 1 or size % patch:
                raise UserError(
                    f"model.patch_size: {patch_size} has to divide {window}"
                )
            grid.append(size // patch)
        num_tokens = math.prod(grid)
        num_hidden = round(mask_ratio * num_tokens)
        if not 0 < num_hidden < num_tokens:  # or there is nothing to learn
            raise UserError(
                f"model.mask_ratio: {mask_ratio} hides {num_hidden} of {num_tokens}"
            )

        # The lengths of the letters in PATCHES and FIELDS.
        sizes = (num_variables, *grid, *patch_size)
        self.axes = dict(
            zip(("v", "t", "h", "w", "pt", "ph", "pw"), sizes, strict=True)
        )
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
        self, x: Tensor, index: Tensor, epoch: int | Tensor | None = None
    ) -> Output:
        """Reconstruct ``x`` (B, V, T, H, W), NaN where there is no value; ``index`` (B,).

        The samples' numbers and the epoch decide what is hidden. Without an epoch it is the same in
        every epoch, for validation.
        """
        values, valid = self.to_patches(x)  # (B, N, P)
        mask = random_mask(valid.any(-1), index, self.seed, epoch, self.mask_ratio)

        tokens = self.encoder(values, valid, mask)  # (B, K, D), of the visible patches
        prediction = self.decoder(tokens, mask)  # (B, N, P), all patches

        hidden = mask.hidden[..., None].expand_as(valid)
        scored = hidden & valid
        error = torch.where(scored, prediction - values, 0.0)
        return Output(
            squared_error=error.float().square().sum(),
            valid_count=scored.sum(),
            prediction=rearrange(prediction, FIELDS, **self.axes),
            hidden=rearrange(hidden, FIELDS, **self.axes),
        )

    def to_patches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The values of all patches, 0 in place of NaN, and which of them are real: (B, N, P)."""
        patches = rearrange(x, PATCHES, **self.axes)
        valid = ~patches.isnan()
        return patches.where(valid, 0.0), valid

    def encode(self, x: Tensor) -> Tensor:
        """Features (B, N, D) of the patches of ``x`` (B, V, T, H, W), in their order.

        The encoder sees all of them. A patch without a value has NaN.
        """
        values, valid = self.to_patches(x)
        has_value = valid.any(-1)
        # With nothing hidden, neither the seed nor the sample matters.
        index = torch.arange(len(x), device=x.device)
        mask = random_mask(has_value, index, self.seed, None, mask_ratio=0.0)
        tokens = self.encoder(values, valid, mask)
        # The mask has shuffled the patches.
        features = torch.take_along_dim(tokens, mask.ids_restore[..., None], dim=1)
        return features.where(has_value[..., None], torch.nan)
