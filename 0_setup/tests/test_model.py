"""The model: shapes, devices, what it may see, and what its loss counts."""

import pytest
import torch

from src.model.masking import random_keys, random_mask
from src.model.pytorch_model import MaskedAutoencoder

# Not on MPS: a hosted Mac has a virtual GPU with little memory, or none.
GPUS = ["cuda"] if torch.cuda.is_available() else []


def small_model(shape=(1, 4, 8, 8), patch_size=(2, 4, 4)) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(shape, patch_size, embed_dim=16, decoder_embed_dim=12)


@pytest.mark.parametrize("device", ["cpu", *GPUS, "meta"])
def test_shapes_and_devices(device):
    """The meta device refuses tensors of any other device: a check for GPUs without one."""
    shape = (5, 3, 9, 6)
    model = small_model(shape, patch_size=(1, 3, 2)).to(device)
    x = torch.randn(3, *shape, device=device)
    output = model(x, torch.arange(3, device=device), epoch=0)
    assert output.prediction.shape == output.hidden.shape == x.shape
    assert {tensor.device.type for tensor in output} == {device}


@pytest.mark.parametrize("land", [0, 5, 7])
def test_hidden_values_never_reach_the_prediction(land):
    """Broken by: no torch.where in Decoder.forward; ids_shuffle without [:, :num_keep]."""
    model = small_model(patch_size=(2, 2, 2))
    x, index = torch.randn(4, 1, 4, 8, 8), torch.arange(4)
    x[..., 8 - land :] = torch.nan  # land leaves spare slots in the encoder
    output = model(x, index, 0)
    assert 0 < output.hidden.sum() < x.numel()
    changed = torch.where(output.hidden, 1e6 * x, x)
    assert model(changed, index, 0).prediction.equal(output.prediction)
    # The visible ones do matter, or this test says nothing.
    changed = torch.where(output.hidden, x, 1e6 * x)
    assert not model(changed, index, 0).prediction.equal(output.prediction)


def test_the_loss_comes_from_hidden_valid_elements_only():
    """Broken by: scored = valid in MaskedAutoencoder.forward, or patches instead of values."""
    x = torch.randn(2, 1, 4, 8, 8)
    x[0, ..., 0] = torch.nan
    x[1] = torch.nan  # all land: adds nothing
    output = small_model()(x, torch.arange(2), 0)
    scored = output.hidden & ~x.isnan()
    assert output.valid_count == scored.sum() > 0
    error = torch.where(scored, output.prediction - x, 0.0)
    torch.testing.assert_close(output.squared_error, error.square().sum())


def test_a_mask_depends_on_seed_epoch_and_index_alone():
    """Not on the batch or a generator. Broken by: torch.rand in random_keys."""
    valid, index = torch.ones(4, 64, dtype=torch.bool), torch.tensor([9, 2, 40, 7])
    together = random_mask(valid, index, 0, 1, 0.75).hidden
    assert together.sum(dim=1).tolist() == [48] * 4
    alone = random_mask(valid[:1], index[2:3], 0, 1, 0.75).hidden
    assert alone[0].equal(together[2])
    # Frozen: what one device computes today, all compute in every release.
    for device in ["cpu", *GPUS]:
        keys = random_keys(1, 2, torch.tensor([3], device=device), 3)
        assert keys.tolist() == [[1440012108, 5129512240, 24951218]]
