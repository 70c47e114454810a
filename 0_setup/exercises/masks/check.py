"""Does a mask depend on (seed, epoch, sample, patch), and on nothing else?"""

from types import ModuleType

import torch

SEED, EPOCH, PATCHES, RATIO = 3, 5, 64, 0.75


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    index = torch.arange(20, 84)
    state = torch.get_rng_state()
    masks = answer.hidden(SEED, EPOCH, index, PATCHES, RATIO)
    found, wanted = (tuple(masks.shape), masks.dtype), ((len(index), PATCHES), torch.bool)
    assert found == wanted, f"shape and type are {found}, and not {wanted}"
    counts = masks.sum(dim=1)
    assert (counts == 48).all(), f"{counts[:4].tolist()}... patches are hidden, and not 48 each"
    again = answer.hidden(SEED, EPOCH, index, PATCHES, RATIO)
    assert masks.equal(again), "the same call gives another mask the second time"
    rank_1 = answer.hidden(SEED, EPOCH, index[1::2], PATCHES, RATIO)
    assert masks[1::2].equal(rank_1), (
        "sample 21 has another mask if every second sample is somewhere else: two ranks would hide "
        "other patches than one"
    )
    for what, changed in {
        "seed": answer.hidden(SEED + 1, EPOCH, index, PATCHES, RATIO),
        "epoch": answer.hidden(SEED, EPOCH + 1, index, PATCHES, RATIO),
        "sample": answer.hidden(SEED, EPOCH, index + 100, PATCHES, RATIO),
    }.items():
        same = (masks == changed).all(dim=1).sum()
        assert not same, f"another {what} gives the same mask, for {same} of 64 samples"
    shifted = answer.hidden(SEED + 1, EPOCH - 1, index, PATCHES, RATIO)
    assert not masks.equal(shifted), (
        "seed 4 in epoch 4 has the masks of seed 3 in epoch 5: a sum of the two mixes them up"
    )
    assert (masks.float().mean(dim=0) < 1).all(), "some patch is hidden in all samples"
    assert torch.get_rng_state().equal(state), (
        "PyTorch's generator has moved on: whoever draws next gets other numbers"
    )
