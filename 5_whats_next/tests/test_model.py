"""The model: shapes, devices, what it may see, and that it can learn."""

import pytest
import torch
from src.errors import UserError
from src.model.pytorch_model import MaskedAutoencoder
from src.model.transformer import Block, sincos_positions

SMALL = {"embed_dim": 16, "num_heads": 2, "depth": 1}
SMALL |= {"decoder_embed_dim": 12, "decoder_num_heads": 2, "decoder_depth": 1}


def small_model(shape=(1, 4, 8, 8), patch_size=(2, 4, 4), **arguments) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(shape, patch_size, **(SMALL | arguments))


@pytest.mark.parametrize(
    ("shape", "patch_size"),
    [
        ((1, 12, 16, 32), (3, 4, 4)),
        ((3, 1, 32, 32), (1, 4, 4)),  # an image
        ((2, 6, 8, 24), (6, 2, 8)),
        ((5, 3, 9, 6), (1, 3, 2)),  # nothing is even
        ((1, 2, 4, 64), (2, 4, 1)),
    ],
)
def test_shapes(shape, patch_size):
    model = small_model(shape, patch_size)
    x = torch.randn(3, *shape)
    output = model(x, torch.arange(3), epoch=0)
    assert output.prediction.shape == output.hidden.shape == x.shape
    assert output.squared_error.shape == output.valid_count.shape == ()
    assert torch.isfinite(output.squared_error)


def test_patches_come_back_in_their_place():
    """Hidden elements form whole patches, the same ones for every variable."""
    model = small_model((2, 4, 8, 8))
    hidden = model(torch.randn(1, 2, 4, 8, 8), torch.arange(1), 0).hidden[0]
    assert hidden[0].equal(hidden[1])
    blocks = hidden[0].reshape(2, 2, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).flatten(3)
    assert (blocks.all(dim=-1) | ~blocks.any(dim=-1)).all()
    assert blocks[..., 0].sum() == 6  # 75 % of eight patches


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_everything_is_on_the_device(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    if device == "mps" and not torch.backends.mps.is_available():
        pytest.skip("no Apple GPU here")
    model = small_model().to(device)
    assert {t.device.type for t in [*model.parameters(), *model.buffers()]} == {device}
    x = torch.randn(2, 1, 4, 8, 8, device=device)
    output = model(x, torch.arange(2, device=device), 0)
    assert {t.device.type for t in output} == {device}


def test_no_tensor_is_made_on_the_wrong_device():
    """The meta device refuses tensors of any other device: a GPU check without a GPU."""
    model = small_model().to("meta")
    x = torch.randn(2, 1, 4, 8, 8, device="meta")
    output = model(x, torch.arange(2, device="meta"), 0)
    assert {t.device.type for t in output} == {"meta"}


def test_hidden_values_cannot_leak():
    """Whatever stands in a hidden patch, the prediction is the same to the bit."""
    model = small_model().eval()
    x, index = torch.randn(4, 1, 4, 8, 8), torch.arange(4)
    output = model(x, index, 0)
    changed = torch.where(output.hidden, 1e6, x)
    assert model(changed, index, 0).prediction.equal(output.prediction)
    # The visible ones do matter, or the test above says nothing.
    changed = torch.where(output.hidden, x, 1e6)
    assert not model(changed, index, 0).prediction.equal(output.prediction)


def test_land_padding_cannot_leak():
    """Land leaves spare slots in the encoder; the hidden patches in them are not seen."""
    model = small_model((1, 4, 8, 8), (2, 2, 2)).eval()
    x, index = torch.randn(1, 1, 4, 8, 8), torch.arange(1)
    x[..., 3:] = torch.nan
    output = model(x, index, 0)
    assert 0 < output.hidden.sum() < x.numel()
    changed = torch.where(output.hidden & ~x.isnan(), -1e6, x)
    assert model(changed, index, 0).prediction.equal(output.prediction)


def test_a_single_patch_of_water_cannot_leak():
    """It is hidden, so nothing is visible, and yet it stands in the encoder's first slot."""
    model = small_model().eval()
    x = torch.full((1, 1, 4, 8, 8), torch.nan)
    x[..., :4, :4] = torch.randn(4, 4)
    x[:, :, 2:] = torch.nan
    output = model(x, torch.arange(1), 0)
    assert output.valid_count == 2 * 4 * 4
    assert model(x * 1e6, torch.arange(1), 0).prediction.equal(output.prediction)


def test_attention_always_has_something_to_look_at(monkeypatch):
    """Attention over nothing is NaN on some devices, so a sample of land attends to one slot."""
    seen = []
    monkeypatch.setattr(Block, "forward", lambda self, x, attend=None: seen.append(attend) or x)
    model = small_model()
    x = torch.randn(2, 1, 4, 8, 8)
    x[1] = torch.nan
    model(x, torch.arange(2), 0)
    assert seen[0].sum(dim=1).tolist() == [2, 1]


def test_a_sample_does_not_depend_on_its_batch():
    model = small_model().eval()
    x = torch.randn(4, 1, 4, 8, 8)
    x[1, ..., 2:] = torch.nan
    together = model(x, torch.arange(4), 0).prediction
    for sample in range(4):
        alone = model(x[sample : sample + 1], torch.tensor([sample]), 0).prediction
        torch.testing.assert_close(alone[0], together[sample], rtol=1e-5, atol=1e-6)


def test_positions_are_distinct_and_fixed():
    positions = sincos_positions((3, 4, 5), 20)
    assert positions.shape == (60, 20)
    assert torch.pdist(positions).min() > 1e-3
    model = small_model()
    assert not any("positions" in name for name, _ in model.named_parameters())
    assert not any("positions" in name for name in model.state_dict())


def test_overfits_one_batch():
    """A model that cannot learn four samples by heart cannot learn anything."""
    model = small_model(embed_dim=32, decoder_embed_dim=32, mask_ratio=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, index = torch.randn(4, 1, 4, 8, 8), torch.arange(4)
    losses = []
    for _ in range(300):
        output = model(x, index, 0)
        loss = output.squared_error / output.valid_count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.8
    assert losses[-1] < 0.05


def test_weights_depend_on_the_seed_only():
    assert (
        small_model()
        .state_dict()["encoder.embed.weight"]
        .equal(small_model().state_dict()["encoder.embed.weight"])
    )


@pytest.mark.parametrize("patch_size", [(3, 4, 4), (2, 5, 4), (2, 4, 16), (0, 4, 4)])
def test_patches_must_tile_the_window(patch_size):
    with pytest.raises(UserError, match=r"model.patch_size: .* \[4, 8, 8\]; allowed"):
        small_model(patch_size=patch_size)


@pytest.mark.parametrize("mask_ratio", [0.0, 1.0, 1.7, -0.1, 0.01, 0.99])
def test_mask_ratio_must_leave_something(mask_ratio):
    with pytest.raises(UserError, match=r"model.mask_ratio: .*allowed: between 0 and 1"):
        small_model(mask_ratio=mask_ratio)


@pytest.mark.parametrize("sizes", [{"embed_dim": 15}, {"num_heads": 3}, {"decoder_embed_dim": 4}])
def test_width_must_fit_the_heads(sizes):
    with pytest.raises(UserError, match="allowed"):
        small_model(**sizes)
