"""Masks: the right share, a function of (seed, epoch, index, token) and of nothing else."""

import pytest
import torch
from src.model.masking import hash32, random_keys, random_mask

DEVICES = ["cpu"]
DEVICES += ["cuda"] if torch.cuda.is_available() else []
DEVICES += ["mps"] if torch.backends.mps.is_available() else []


FROZEN_KEYS = [[1440012108, 5129512240, 24951218], [12662949813, 11728521157, 8881872530]]
FROZEN_HASHES = [0, 2261973619, 2578835075]


def valid_patches(batch: int, num_tokens: int) -> torch.Tensor:
    return torch.ones(batch, num_tokens, dtype=torch.bool)


@pytest.mark.parametrize("num_tokens", [4, 7, 100, 128, 1000])
@pytest.mark.parametrize("mask_ratio", [0.25, 0.5, 0.545, 0.75, 0.9])
def test_hides_exactly_the_ratio(num_tokens, mask_ratio):
    mask = random_mask(valid_patches(3, num_tokens), torch.arange(3), 0, 0, mask_ratio)
    expected = round(mask_ratio * num_tokens)
    assert mask.hidden.sum(dim=1).tolist() == [expected] * 3
    assert mask.ids_keep.shape == (3, num_tokens - expected)
    assert mask.keep_valid.all()


def test_each_patch_is_either_kept_or_hidden():
    mask = random_mask(valid_patches(5, 60), torch.arange(5), 1, 2, 0.75)
    for sample in range(5):
        kept = set(mask.ids_keep[sample].tolist())
        hidden = set(mask.hidden[sample].nonzero()[:, 0].tolist())
        assert kept | hidden == set(range(60))
        assert not kept & hidden


def test_restoring_undoes_the_shuffle():
    mask = random_mask(valid_patches(2, 12), torch.arange(2), 0, 0, 0.5)
    # The slot of a kept patch is its place in ids_keep.
    slots = mask.ids_restore.gather(1, mask.ids_keep)
    assert slots.tolist() == [list(range(6))] * 2


@pytest.mark.parametrize("changed", ["seed", "epoch", "index"])
def test_every_input_matters(changed):
    inputs = {"seed": 3, "epoch": 4, "index": 5}
    masks = []
    for value in (inputs, inputs | {changed: 6}):
        index = torch.tensor([value["index"]])
        masks.append(random_mask(valid_patches(1, 64), index, value["seed"], value["epoch"], 0.75))
    assert not masks[0].hidden.equal(masks[1].hidden)


def test_does_not_depend_on_the_batch():
    """Alone, in another order or beside other samples: a sample keeps its mask."""
    index = torch.tensor([9, 2, 40, 7])
    together = random_mask(valid_patches(4, 32), index, 0, 1, 0.75).hidden
    reversed_order = random_mask(valid_patches(4, 32), index.flip(0), 0, 1, 0.75).hidden.flip(0)
    alone = torch.cat(
        [random_mask(valid_patches(1, 32), i[None], 0, 1, 0.75).hidden for i in index]
    )
    assert together.equal(reversed_order)
    assert together.equal(alone)


def test_does_not_touch_the_random_generators():
    before = torch.random.get_rng_state()
    torch.manual_seed(0)
    first = random_mask(valid_patches(2, 32), torch.arange(2), 0, 0, 0.75).hidden
    torch.manual_seed(1)
    second = random_mask(valid_patches(2, 32), torch.arange(2), 0, 0, 0.75).hidden
    assert first.equal(second)
    torch.random.set_rng_state(before)
    random_mask(valid_patches(2, 32), torch.arange(2), 0, 0, 0.75)
    assert torch.random.get_rng_state().equal(before)


def test_validation_masks_depend_on_the_sample_alone():
    index = torch.arange(6)
    valid = valid_patches(6, 32)
    masks = [random_mask(valid, index, seed, None, 0.75).hidden for seed in (0, 1)]
    assert masks[0].equal(masks[1])
    assert not masks[0].equal(random_mask(valid, index, 0, 0, 0.75).hidden)
    assert not masks[0][0].equal(masks[0][1])


@pytest.mark.parametrize("device", DEVICES)
def test_same_numbers_on_every_device(device):
    """Frozen values: what one device computes today, all of them compute in every release."""
    keys = random_keys(1, 2, torch.tensor([3, 4], device=device), 3).cpu()
    assert keys.tolist() == FROZEN_KEYS
    hashes = hash32(torch.tensor([0, 1, 2**32 - 1], device=device)).cpu()
    assert hashes.tolist() == FROZEN_HASHES


def reference_hash(x: int) -> int:
    """The same hash in plain integers, which cannot overflow."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD % 2**32
    x = (x ^ (x >> 15)) * 0x735A2D97 % 2**32
    return x ^ (x >> 15)


def test_hash_never_overflows():
    values = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, *range(10_000, 2**32, 2**25 + 7)]
    assert hash32(torch.tensor(values)).tolist() == [reference_hash(value) for value in values]


def test_all_patches_are_hidden_equally_often():
    """Of 10 000 masks, 7 500 hide a given patch, give or take five standard deviations."""
    mask = random_mask(valid_patches(10_000, 32), torch.arange(10_000), 0, 0, 0.75)
    deviation = 5 * (10_000 * 0.75 * 0.25) ** 0.5
    assert (mask.hidden.sum(dim=0) - 7500).abs().max() < deviation


def test_neighbouring_samples_have_unrelated_masks():
    """Masks of samples i and i + 1 agree as often as two coins do: 0.75**2 + 0.25**2 = 0.625."""
    hidden = random_mask(valid_patches(10_000, 64), torch.arange(10_000), 0, 0, 0.75).hidden
    agreement = (hidden[1:] == hidden[:-1]).float().mean().item()
    assert agreement == pytest.approx(0.625, abs=0.003)


def test_land_is_left_out_of_the_lottery():
    valid = valid_patches(3, 16)
    valid[0, 8:] = False  # half land
    valid[1, 1:] = False  # one patch of water
    valid[2] = False  # all land
    mask = random_mask(valid, torch.arange(3), 0, 0, 0.75)
    assert not (mask.hidden & ~valid).any()
    assert mask.hidden.sum(dim=1).tolist() == [6, 1, 0]
    assert mask.keep_valid.sum(dim=1).tolist() == [2, 0, 0]
    # What is marked as visible is water that is not hidden.
    for sample in range(3):
        shown = mask.ids_keep[sample][mask.keep_valid[sample]]
        assert valid[sample, shown].all()
        assert not mask.hidden[sample, shown].any()
