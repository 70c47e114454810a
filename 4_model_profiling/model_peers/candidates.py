"""The models that are compared: the same sizes, the same images, the same optimiser."""

import importlib.util
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from model_peers.canonical import CanonicalMAE
from src.model.pytorch_model import MaskedAutoencoder
from torch import Tensor, nn


class Size(NamedTuple):
    """What all of them have in common; images are square, because ViTMAE's have to be."""

    size: int  # pixels of a side
    patch: int
    dim: int
    depth: int
    heads: int
    decoder_dim: int
    decoder_depth: int
    decoder_heads: int
    batch: int
    channels: int = 3
    mask_ratio: float = 0.75

    @property
    def tokens(self) -> int:
        return (self.size // self.patch) ** 2


SIZES = {
    # This chapter's default model, on nearly as many patches (144 instead of 128).
    "small": Size(48, 4, 64, 2, 4, 64, 2, 4, batch=16),
    # A ViT-Tiny on photographs.
    "tiny": Size(224, 16, 192, 12, 3, 128, 4, 4, batch=16),
    # The paper's ViT-Base, for a GPU.
    "base": Size(224, 16, 768, 12, 12, 512, 8, 16, batch=64),
}


class Candidate(NamedTuple):
    """A model, and how its loss is computed from images (B, C, H, W)."""

    model: nn.Module
    loss: Callable[[Tensor], Tensor]


def ours(s: Size, compile: bool, lean: bool = False) -> Candidate:
    """This chapter's model; an image is a field of one time."""
    model = MaskedAutoencoder(
        sample_shape=(s.channels, 1, s.size, s.size),
        patch_size=(1, s.patch, s.patch),
        mask_ratio=s.mask_ratio,
        embed_dim=s.dim,
        depth=s.depth,
        num_heads=s.heads,
        decoder_embed_dim=s.decoder_dim,
        decoder_depth=s.decoder_depth,
        decoder_num_heads=s.decoder_heads,
        compile=compile,
        lean_decoder=lean,
    )
    epochs = itertools.count()

    def loss(images: Tensor) -> Tensor:
        index = torch.arange(len(images), device=images.device)
        # Another epoch each time has other masks, as the others draw new ones.
        output = model(images[:, :, None], index, next(epochs))
        return output.squared_error / output.valid_count.clamp(min=1)

    return Candidate(model, loss)


def vitmae(s: Size, attention: str, compile: bool) -> Candidate:
    """ViTMAE of transformers, https://huggingface.co/docs/transformers/model_doc/vit_mae."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    config = ViTMAEConfig(
        image_size=s.size,
        patch_size=s.patch,
        num_channels=s.channels,
        hidden_size=s.dim,
        num_hidden_layers=s.depth,
        num_attention_heads=s.heads,
        intermediate_size=4 * s.dim,
        decoder_hidden_size=s.decoder_dim,
        decoder_num_hidden_layers=s.decoder_depth,
        decoder_num_attention_heads=s.decoder_heads,
        decoder_intermediate_size=4 * s.decoder_dim,
        mask_ratio=s.mask_ratio,
        norm_pix_loss=False,
    )
    config._attn_implementation = attention
    model = ViTMAEForPreTraining(config).train()
    call = torch.compile(model) if compile else model
    return Candidate(model, lambda images: call(images).loss)


def canonical(s: Size) -> Candidate:
    """The paper's formulation."""
    sizes = {name: getattr(s, name) for name in s._fields if name != "batch"}
    model = CanonicalMAE(**sizes)
    return Candidate(model, lambda images: model(images)[0])


CANDIDATES: dict[str, Callable[[Size], Candidate]] = {
    "this chapter, lean, compiled": lambda s: ours(s, compile=True, lean=True),
    "this chapter, lean": lambda s: ours(s, compile=False, lean=True),
    "this chapter, compiled": lambda s: ours(s, compile=True),
    "this chapter": lambda s: ours(s, compile=False),
    "ViTMAE (sdpa)": lambda s: vitmae(s, "sdpa", compile=False),
    "ViTMAE (sdpa), compiled": lambda s: vitmae(s, "sdpa", compile=True),
    "ViTMAE (eager)": lambda s: vitmae(s, "eager", compile=False),
    "canonical": canonical,
}
REFERENCE = "ViTMAE (sdpa)"


def present() -> list[str]:
    """Those that can be built here."""
    has_transformers = importlib.util.find_spec("transformers") is not None
    return [name for name in CANDIDATES if has_transformers or "ViTMAE" not in name]
