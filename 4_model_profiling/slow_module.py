"""The same training, as a first version is often written: correct, and slow.

Each form here is the straightforward one, which many programs have. step_ladder.py replaces one
after the other, and the losses stay the same.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from src.model.lightning_module import AutoencoderModule
from src.model.masking import Mask, random_mask
from src.model.transformer import Attention, Block


class ExplicitAttention(Attention):
    """Attention as the formula has it: all scores (B, A, N, N) are in memory."""

    def forward(self, x: Tensor, attend: Tensor | None = None) -> Tensor:
        """As Attention."""
        split = "b n (three a d) -> three b a n d"
        q, k, v = rearrange(self.qkv(x), split, three=3, a=self.num_heads)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if attend is not None:
            scores = scores.masked_fill(~attend[:, None, None, :], float("-inf"))
        x = scores.softmax(dim=-1) @ v
        return self.proj(rearrange(x, "b a n d -> b n (a d)"))


def masks_one_by_one(valid: Tensor, index: Tensor, *settings: Any) -> Mask:
    """As random_mask, with a loop over the samples, on the processor."""
    masks = []
    for own_valid, own_index in zip(valid.cpu(), index.cpu(), strict=True):
        masks.append(random_mask(own_valid[None], own_index[None], *settings))
    fields = [torch.cat(parts).to(valid.device) for parts in zip(*masks, strict=True)]
    return Mask(*fields)


class SlowModule(AutoencoderModule):
    """AutoencoderModule with forms that can be replaced one by one.

    Args:
        optimizer: as in AutoencoderModule. Here, because build_training looks at the signature.
        seed: as in AutoencoderModule.
        fused_attention: PyTorch's fused kernel; without it all scores are in memory.
        batched_masks: all masks of a batch at once; without, in a loop over the samples.
        fill_memory: write NaN to each new tensor before its values, PyTorch's deterministic mode.
        waits: look at the loss and the gradient in each step, for which a GPU has to be ready.
        settings: those of AutoencoderModule and of its model.
    """

    def __init__(
        self,
        optimizer: dict[str, Any] | None = None,
        seed: int = 0,
        fused_attention: bool = False,
        batched_masks: bool = False,
        fill_memory: bool = True,
        waits: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(optimizer, seed, **settings)
        self.fused_attention = fused_attention
        self.batched_masks = batched_masks
        self.fill_memory = fill_memory
        self.waits = waits

    def configure_model(self) -> None:
        """Build the model, and replace the parts that are to be slow."""
        super().configure_model()
        deterministic: Any = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = self.fill_memory
        if not self.batched_masks:
            self.model.random_mask = masks_one_by_one
        if not self.fused_attention:
            for module in self.model.modules():
                if isinstance(module, Block):
                    module.attn = explicit(module.attn)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """As AutoencoderModule; perhaps with a look at the loss."""
        loss = super().training_step(batch, batch_idx)
        if self.waits:
            loss.item()
        return loss

    def configure_gradient_clipping(self, *arguments: Any, **settings: Any) -> None:
        """As AutoencoderModule; perhaps with a look at the gradient."""
        super().configure_gradient_clipping(*arguments, **settings)
        if self.waits:
            self.check_finite()


def explicit(fused: Attention) -> ExplicitAttention:
    """The same layer, with the same weights, in its explicit form."""
    slow = ExplicitAttention(fused.qkv.in_features, fused.num_heads)
    slow.qkv = fused.qkv
    slow.proj = fused.proj
    return slow
