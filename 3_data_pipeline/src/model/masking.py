"""Which patches are hidden: a pure function of (seed, epoch, sample index, token).

A random generator has a state. It depends on how many samples this process has already seen, so
masks would change with the number of ranks and workers, and a resumed run would need the state
back. A hash has no state: the same sample gets the same mask in every process, on every device, in
any batch.

B batch, N tokens (patches), K visible tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from src.run.reproducibility import hash32

# Validation masks depend on the sample alone, so that losses compare across epochs, seeds and runs.
# No training reaches this epoch, so none of its masks is one of these.
VALIDATION_SEED = 0
VALIDATION_EPOCH = 2**32 - 1


class Mask(NamedTuple):
    """The split of every sample's patches into visible and hidden ones."""

    ids_keep: Tensor  # (B, K) patch numbers that go through the encoder
    # (B, K) False for a slot that only pads a sample with much land
    slot_is_visible: Tensor
    ids_restore: Tensor  # (B, N) slot of each patch in the shuffled order
    hidden: Tensor  # (B, N) True where a patch is to be reconstructed


def random_keys(seed: int, epoch: int, index: Tensor, num_tokens: int) -> Tensor:
    """Distinct int64 sort keys (B, N) for the samples ``index`` (B,)."""
    token = torch.arange(num_tokens, device=index.device)
    # torch.full makes the number on the device. torch.tensor(seed) would copy it there, and wait.
    run_hash = hash32(hash32(torch.full((), seed, device=index.device)) + epoch)
    sample_hash = hash32(run_hash + index)
    key = hash32(sample_hash[:, None] + token)
    # The token number breaks ties: every device then sorts to the same order.
    return key * num_tokens + token


def random_mask(
    valid: Tensor, index: Tensor, seed: int, epoch: int | None, mask_ratio: float
) -> Mask:
    """Hide ``mask_ratio`` of each sample's ``valid`` (B, N) patches; no epoch means validation.

    Patches without a single value (all land) are not valid: there is nothing to learn from them, so
    they are neither shown nor reconstructed.
    """
    if epoch is None:
        seed = VALIDATION_SEED
        epoch = VALIDATION_EPOCH
    num_tokens = valid.shape[1]
    key = random_keys(seed, epoch, index, num_tokens)
    # Patches without values go last, behind the largest possible key.
    ids_shuffle = torch.argsort(key + (~valid) * (num_tokens << 32), dim=1)
    ids_restore = torch.argsort(ids_shuffle, dim=1)  # the inverse permutation

    # How many of n valid patches stay visible, for every n: rounded once, for all devices alike.
    visible_count = [n - round(mask_ratio * n) for n in range(num_tokens + 1)]
    num_valid = valid.sum(dim=1)
    # A plain copy to a GPU makes Python wait; non_blocking does not. On Apple's GPUs it must wait:
    # the source may be freed, and overwritten, before it is copied
    # (https://github.com/pytorch/pytorch/issues/83015).
    device = valid.device
    counts = torch.tensor(visible_count).to(device, non_blocking=device.type == "cuda")
    num_visible = counts[num_valid]

    # Every sample gets as many slots as a sample without land needs, so a batch stays rectangular
    # and no sample depends on its neighbours in the batch.
    num_keep = visible_count[num_tokens]
    slot = torch.arange(num_tokens, device=valid.device)
    shuffled_hidden = (slot >= num_visible[:, None]) & (slot < num_valid[:, None])
    return Mask(
        ids_keep=ids_shuffle[:, :num_keep],
        slot_is_visible=slot[:num_keep] < num_visible[:, None],
        ids_restore=ids_restore,
        hidden=shuffled_hidden.gather(1, ids_restore),
    )
