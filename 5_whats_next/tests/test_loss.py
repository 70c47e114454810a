"""The loss: worked out by hand, with land, and with gradients only where they belong."""

import pytest
import torch
from src.model.masking import Mask
from src.model.pytorch_model import MaskedAutoencoder, patch_statistics
from torch import Tensor, nn


class ConstantDecoder(nn.Module):
    """Predicts one learnable number for each element, so that the loss can be computed by hand."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(shape))

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        return self.value


def model_predicting_zero(shape=(1, 2, 4, 4), patch_size=(1, 2, 2), batch=1, **arguments):
    model = MaskedAutoencoder(shape, patch_size, embed_dim=12, num_heads=2, **arguments)
    num_tokens = model.grid[0] * model.grid[1] * model.grid[2]
    patch_dim = shape[0] * patch_size[0] * patch_size[1] * patch_size[2]
    model.decoder = ConstantDecoder((batch, num_tokens, patch_dim))
    return model


def test_by_hand():
    """Eight patches, six of them hidden, four elements each: 24 elements that are wrong by 3."""
    output = model_predicting_zero()(torch.full((1, 1, 2, 4, 4), 3.0), torch.tensor([0]), 0)
    assert output.valid_count == 24
    assert output.squared_error == 24 * 9.0


def test_only_hidden_elements_count():
    x = torch.randn(1, 1, 2, 4, 4)
    output = model_predicting_zero()(x, torch.tensor([0]), 0)
    torch.testing.assert_close(output.squared_error, x[output.hidden].square().sum())


def test_land_does_not_count():
    """One element of each patch is water; the land around it is neither 0 nor anything else."""
    x = torch.full((1, 1, 2, 4, 4), torch.nan)
    x[..., ::2, ::2] = 2.0
    output = model_predicting_zero()(x, torch.tensor([0]), 0)
    assert output.valid_count == 6
    assert output.squared_error == 6 * 4.0


def test_land_patches_are_not_drawn():
    """Only four patches have water; 75 % of those four are hidden, not of all eight."""
    x = torch.full((1, 1, 2, 4, 4), torch.nan)
    x[:, :, 0] = 1.0
    output = model_predicting_zero()(x, torch.tensor([0]), 0)
    assert output.valid_count == 3 * 4
    assert not output.hidden[:, :, 1].any()


def test_a_sample_of_land_is_harmless():
    """It adds nothing to the sum, to the count or to the gradients, and nothing becomes NaN."""
    torch.manual_seed(0)
    model = MaskedAutoencoder((1, 2, 4, 4), (1, 2, 2), embed_dim=12, num_heads=2)
    x = torch.randn(2, 1, 2, 4, 4)
    x[1] = torch.nan
    output = model(x, torch.arange(2), 0)
    alone = model(x[:1], torch.arange(1), 0)
    assert output.valid_count == alone.valid_count == 24
    torch.testing.assert_close(output.squared_error, alone.squared_error)
    (output.squared_error / output.valid_count).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_gradients_come_from_hidden_valid_elements_only():
    x = torch.randn(1, 1, 2, 4, 4)
    x[..., 0] = torch.nan
    model = model_predicting_zero()
    output = model(x, torch.tensor([0]), 0)
    output.squared_error.backward()
    scored = (output.hidden & ~x.isnan())[0, 0]
    gradient = model.decoder.value.grad[0].reshape(2, 2, 2, 2, 2).permute(0, 1, 3, 2, 4)
    gradient = gradient.reshape(2, 4, 4)  # from (t, h, w, ph, pw) to (T, H, W)
    assert (gradient[~scored] == 0).all()
    torch.testing.assert_close(gradient[scored], -2 * x[0, 0][scored])


def test_sums_of_batches_add_up():
    """Sum and count of a batch are those of its parts: this is what makes DDP exact later on."""
    torch.manual_seed(0)
    model = MaskedAutoencoder((1, 2, 4, 4), (1, 2, 2), embed_dim=12, num_heads=2).double()
    x, index = torch.randn(6, 1, 2, 4, 4).double(), torch.arange(6)
    x[2, ..., :2] = torch.nan
    whole = model(x, index, 0)
    parts = [model(x[i : i + 2], index[i : i + 2], 0) for i in (0, 2, 4)]
    assert whole.valid_count == sum(part.valid_count for part in parts)
    total = sum(part.squared_error for part in parts)
    torch.testing.assert_close(whole.squared_error, total, rtol=1e-6, atol=0)


def test_patch_statistics():
    """Mean and spread of each patch over its valid elements; land counts for nothing."""
    values = torch.tensor([[[1.0, 3.0, 5.0, 0.0], [7.0, 7.0, 7.0, 7.0]]])
    valid = torch.tensor([[[True, True, True, False], [True, True, True, True]]])
    mean, spread = patch_statistics(values, valid)
    torch.testing.assert_close(mean, torch.tensor([[[3.0], [7.0]]]))
    torch.testing.assert_close(
        spread, torch.tensor([[[(8 / 3) ** 0.5], [1e-3]]]), atol=1e-5, rtol=0
    )


def test_norm_pix_loss_predicts_in_the_units_of_x():
    """A model that predicts 0 everywhere then says: the mean of each patch."""
    x = torch.randn(1, 1, 2, 4, 4) + 5
    output = model_predicting_zero(norm_pix_loss=True)(x, torch.tensor([0]), 0)
    patches = x.reshape(2, 2, 2, 2, 2)  # (t, h, ph, w, pw)
    expected = patches.mean(dim=(2, 4), keepdim=True).expand_as(patches).reshape(x.shape)
    torch.testing.assert_close(output.prediction, expected)


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_norm_pix_loss_ignores_the_amplitude(offset):
    """The reason to leave it off for kelvins: a field and ten times that field cost the same."""
    torch.manual_seed(0)
    model = model_predicting_zero(norm_pix_loss=True)
    x = torch.randn(1, 1, 2, 4, 4)
    costs = [model(y, torch.tensor([0]), 0).squared_error for y in (x, 10 * x + offset)]
    torch.testing.assert_close(costs[0], costs[1], rtol=1e-3, atol=0)
