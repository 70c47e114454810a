"""A masked autoencoder for gridded fields with missing values.

Hide most patches of a field, show the rest to an encoder, let a light decoder fill the gaps (He et
al., https://arxiv.org/abs/2111.06377). Patches are three-dimensional (time, lat, lon); an image is
the case of one time step.

Shapes: B batch, V variables, T times, H latitudes, W longitudes; N tokens (patches), P values in a
patch.
"""

import math
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from src.errors import UserError
from src.model.compiled import compile_forward
from src.model.lean_decoder import LeanDecoder
from src.model.masking import Mask, random_mask
from src.model.pytorch_decoder import Decoder
from src.model.pytorch_encoder import Encoder

PATCHES = "b v (t pt) (h ph) (w pw) -> b (t h w) (v pt ph pw)"
FIELDS = "b (t h w) (v pt ph pw) -> b v (t pt) (h ph) (w pw)"


class Output(NamedTuple):
    """What one forward pass returns."""

    squared_error: Tensor  # () summed over the hidden, valid elements of the batch
    valid_count: Tensor  # () how many elements that sum runs over
    prediction: Tensor  # (B, V, T, H, W) in the units of x; lean_decoder: only where hidden
    hidden: Tensor  # (B, V, T, H, W) True where the model did not see x


class MaskedAutoencoder(nn.Module):
    """Reconstruct the hidden patches of normalised fields.

    Args:
        sample_shape: (V, T, H, W) of one sample; taken from the dataset.
        patch_size: times, latitudes and longitudes in one patch; must divide the window.
        mask_ratio: share of the valid patches that is hidden, between 0 and 1.
        embed_dim: width of the encoder.
        depth: number of encoder blocks.
        num_heads: attention heads of the encoder; must divide embed_dim.
        decoder_embed_dim: width of the decoder.
        decoder_depth: number of decoder blocks.
        decoder_num_heads: attention heads of the decoder; must divide decoder_embed_dim.
        norm_pix_loss: compare patches after normalising each target patch. It helps on photographs;
            leave it off for physical fields, where it throws the amplitude (the kelvins) away.
        seed: seed of the training masks.
        activation_checkpointing: keep less for the gradients, and compute it again: memory for
            time.
        compile: let torch.compile make kernels of the forward pass and its gradients. It needs a
            C++ compiler, and half a minute or more at the start.
        lean_decoder: leave out of the decoder what no loss depends on, and compute once what all
            samples have in common. The numbers stay the same up to rounding.
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int, int],
        patch_size: tuple[int, int, int] = (3, 4, 4),
        mask_ratio: float = 0.75,
        embed_dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        decoder_embed_dim: int = 64,
        decoder_depth: int = 2,
        decoder_num_heads: int = 4,
        norm_pix_loss: bool = False,
        seed: int = 0,
        activation_checkpointing: bool = False,
        compile: bool = False,
        lean_decoder: bool = False,
    ) -> None:
        super().__init__()
        num_variables, *window = sample_shape
        check_patches(window, patch_size, mask_ratio)
        check_width("embed_dim", embed_dim, num_heads)
        check_width("decoder_embed_dim", decoder_embed_dim, decoder_num_heads)
        self.grid = [size // patch for size, patch in zip(window, patch_size, strict=True)]
        self.axes = {"pt": patch_size[0], "ph": patch_size[1], "pw": patch_size[2]}
        self.axes |= {"t": self.grid[0], "h": self.grid[1], "w": self.grid[2], "v": num_variables}
        self.mask_ratio, self.norm_pix_loss, self.seed = mask_ratio, norm_pix_loss, seed
        patch_dim = num_variables * patch_size[0] * patch_size[1] * patch_size[2]
        self.encoder = Encoder(
            self.grid, patch_dim, embed_dim, depth, num_heads, activation_checkpointing
        )
        self.decoder = (LeanDecoder if lean_decoder else Decoder)(
            self.grid,
            patch_dim,
            embed_dim,
            decoder_embed_dim,
            decoder_depth,
            decoder_num_heads,
            activation_checkpointing,
        )
        if compile:
            compile_forward(self)

    def forward(self, x: Tensor, index: Tensor, epoch: int | Tensor | None = None) -> Output:
        """Reconstruct ``x`` (B, V, T, H, W), NaN where there is no value.

        ``index`` (B,) are the samples' numbers in the dataset; with ``epoch`` they decide what is
        hidden. ``epoch=None`` uses the validation masks, which are the same in every epoch.
        """
        patches = rearrange(x, PATCHES, **self.axes)
        valid = ~torch.isnan(patches)
        values = torch.where(valid, patches, 0.0)
        mask = self.hide(valid.any(dim=-1), index, epoch)

        tokens = self.encoder(values, valid, mask)
        prediction = self.decoder(tokens, mask)

        hidden = mask.hidden[..., None].expand_as(valid)
        scored = hidden & valid
        mean, std = patch_statistics(values, valid) if self.norm_pix_loss else (0.0, 1.0)
        target = (values - mean) / std
        error = torch.where(scored, prediction - target, 0.0)
        return Output(
            squared_error=error.float().square().sum(),
            valid_count=scored.sum(),
            # With norm_pix_loss this borrows mean and spread of each patch from the truth.
            prediction=rearrange(prediction * std + mean, FIELDS, **self.axes),
            hidden=rearrange(hidden, FIELDS, **self.axes),
        )

    def count_scored(self, x: Tensor, index: Tensor, epoch: int | Tensor | None = None) -> Tensor:
        """How many elements the error of ``forward`` runs over (), which the masks alone decide."""
        valid = ~torch.isnan(rearrange(x, PATCHES, **self.axes))
        hidden = self.hide(valid.any(dim=-1), index, epoch).hidden
        return (hidden[..., None] & valid).sum()

    def hide(self, valid: Tensor, index: Tensor, epoch: int | Tensor | None) -> Mask:
        """Which of the patches, ``valid`` (B, N), are hidden."""
        return random_mask(valid, index, self.seed, epoch, self.mask_ratio)


def patch_statistics(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread (B, N, 1) over the valid elements of each patch of ``values`` (B, N, P)."""
    count = valid.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = values.sum(dim=-1, keepdim=True) / count
    deviation = torch.where(valid, values - mean, 0.0)
    variance = deviation.square().sum(dim=-1, keepdim=True) / count
    return mean, (variance + 1e-6).sqrt()


def check_patches(window: list[int], patch_size: tuple[int, int, int], mask_ratio: float) -> None:
    """Raise UserError if patches do not tile the window, or the mask leaves nothing to do."""
    if any(patch < 1 or size % patch for size, patch in zip(window, patch_size, strict=True)):
        raise UserError(
            f"model.patch_size: {list(patch_size)} does not divide the window {window}; "
            "allowed: divisors along each of time, lat, lon"
        )
    num_tokens = math.prod(size // patch for size, patch in zip(window, patch_size, strict=True))
    if not 0 < mask_ratio < 1 or not 0 < round(mask_ratio * num_tokens) < num_tokens:
        raise UserError(
            f"model.mask_ratio: {mask_ratio} leaves no hidden or no visible patch of {num_tokens}; "
            "allowed: between 0 and 1, both excluded"
        )


def check_width(key: str, dim: int, num_heads: int) -> None:
    """Raise UserError for a width that the heads or the positions cannot share."""
    if num_heads < 1 or dim % num_heads or dim % 2 or dim < 6:
        raise UserError(
            f"model.{key}: {dim} does not work with {num_heads} heads; "
            "allowed: even numbers from 6 on that the number of heads divides"
        )
