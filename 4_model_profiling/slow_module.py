"""The same training as a first version of it may look: right, and slow.

Nothing here is slow on purpose only: each form is the straightforward one, which many programs
have. ``step_ladder.py`` replaces one after the other; the numbers that come out stay the same.
"""

from typing import Any, Literal

import torch
from einops import rearrange
from src.model.lightning_module import AutoencoderModule, Batch
from src.model.masking import Mask, random_mask
from src.model.pytorch_model import MaskedAutoencoder
from src.model.transformer import Attention
from torch import Tensor


class ExplicitAttention(Attention):
    """Attention as the formula has it: the matrix of all scores (B, A, N, N) is in memory."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, attend: Tensor | None = None) -> Tensor:
        """See Attention.attention."""
        q, k, v = (rearrange(x, "b n (a d) -> b a n d", a=self.num_heads) for x in (q, k, v))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if attend is not None:
            scores = scores.masked_fill(~attend[:, None, None, :], float("-inf"))
        x = scores.softmax(dim=-1) @ v
        return self.proj(rearrange(x, "b a n d -> b n (a d)"))


class OneByOne(MaskedAutoencoder):
    """Makes the mask of each sample by itself, on the processor."""

    def hide(self, valid: Tensor, index: Tensor, epoch: int | Tensor | None) -> Mask:
        """See MaskedAutoencoder.hide."""
        masks = []
        for sample in range(len(valid)):
            own_valid, own_index = valid[sample].cpu(), index[sample].cpu()
            masks.append(
                random_mask(own_valid[None], own_index[None], self.seed, epoch, self.mask_ratio)
            )
        return Mask(*(torch.cat(parts).to(valid.device) for parts in zip(*masks, strict=True)))


class SlowModule(AutoencoderModule):
    """AutoencoderModule with forms that can be replaced one by one.

    Args:
        attention: explicit has the matrix of scores in memory, fused computes it in pieces.
        masks: one_by_one makes them in a loop over the samples, batched all at once.
        read_loss: ask for the number after each step, which waits until a GPU has computed it.
        fill_memory: what PyTorch's deterministic mode does by default: write NaN to each new
            tensor before its values.
        settings: those of AutoencoderModule and of its model.
    """

    def __init__(
        self,
        attention: Literal["explicit", "fused"] = "explicit",
        masks: Literal["one_by_one", "batched"] = "one_by_one",
        read_loss: bool = True,
        fill_memory: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.attention, self.masks = attention, masks
        self.read_loss, self.fill_memory = read_loss, fill_memory
        self.history: list[float] = []

    def configure_model(self) -> None:
        """Build the model; see AutoencoderModule."""
        super().configure_model()
        deterministic: Any = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = self.fill_memory

    def new_model(self) -> MaskedAutoencoder:
        """A model with new weights, the same ones whatever the forms are."""
        shape, seed = self.hparams["sample_shape"], self.hparams["seed"]
        kind = OneByOne if self.masks == "one_by_one" else MaskedAutoencoder
        model = kind(sample_shape=shape, seed=seed, **self.model_settings)
        if self.attention == "explicit":
            for module in model.modules():
                if isinstance(module, Attention):
                    module.__class__ = ExplicitAttention  # the weights are the same
        return model

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """See AutoencoderModule.training_step."""
        loss = super().training_step(batch, batch_idx)
        if self.read_loss:
            self.history.append(loss.item())
        return loss
