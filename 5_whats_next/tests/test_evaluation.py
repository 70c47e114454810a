"""Scores and baselines against straightforward computations."""

import numpy as np
import pytest
import torch
from src.data.pytorch_dataset import DummyDataset, OceanDataset
from src.errors import UserError
from src.evaluation import (
    SquaredError,
    climatology,
    inverse_distance,
    score_baselines,
    validate,
    visible_mean,
)
from src.model.pytorch_model import MaskedAutoencoder
from torch.utils.data import DataLoader

SHAPE = (2, 4, 8, 8)


@pytest.fixture
def noise() -> DummyDataset:
    dataset = DummyDataset("val", SHAPE, num_val_samples=7)
    dataset.std = np.array([1.0, 3.0], np.float32)
    return dataset


@pytest.fixture
def model() -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(SHAPE, (2, 4, 4), embed_dim=12, num_heads=2)


def test_rmse_is_over_hidden_valid_elements_in_physical_units(noise):
    error = SquaredError(noise)
    x = torch.zeros(1, *SHAPE)
    x[0, :, 0] = torch.nan
    hidden = torch.zeros_like(x, dtype=torch.bool)
    hidden[..., :4] = True
    guess = torch.full_like(x, 2.0)
    guess[~hidden] = 1e9  # nobody asked
    error.update(guess, x, hidden)
    assert error.count.tolist() == [3 * 8 * 4] * 2
    assert error.rmse() == {"rmse_noise_0": 2.0, "rmse_noise_1": 6.0}


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_validation_does_not_depend_on_the_batch_size(noise, model, batch_size):
    """The mean over all elements, not the mean of the batches' means: 7 samples in batches of 3."""
    cpu = torch.device("cpu")
    expected = validate(model, DataLoader(noise, 7), cpu)
    found = validate(model, DataLoader(noise, batch_size), cpu)
    assert found == pytest.approx(expected, rel=1e-6)
    assert model.training


def test_loss_and_rmse_agree(noise, model):
    """With one spread for all variables, the RMSE is the root of the loss times that spread."""
    noise.std[:] = 2.0
    scores = validate(model, DataLoader(noise, 7), torch.device("cpu"))
    both = scores["rmse_noise_0"] ** 2 + scores["rmse_noise_1"] ** 2
    assert both / 2 == pytest.approx(4 * scores["val_loss"], rel=1e-5)


def test_visible_mean():
    x = torch.arange(16.0).reshape(1, 1, 1, 4, 4)
    x[..., 0] = torch.nan
    hidden = torch.zeros_like(x, dtype=torch.bool)
    hidden[..., 1, :] = True
    expected = torch.cat([x[..., 0, 1:], x[..., 2, 1:], x[..., 3, 1:]]).mean()
    assert visible_mean(x, torch.tensor([0]), hidden).unique() == expected
    assert visible_mean(x, torch.tensor([0]), ~torch.isnan(x)).unique() == 0.0


def test_inverse_distance_against_a_loop():
    torch.manual_seed(0)
    x = torch.randn(2, 1, 3, 5, 6)
    x[0, ..., :2] = torch.nan
    hidden = torch.rand(x.shape) < 0.6
    guess = inverse_distance(x, torch.arange(2), hidden)
    compared = 0
    for s, _, t, i, j in (hidden & ~x.isnan()).nonzero().tolist():
        seen = (~hidden[s, 0] & ~x[s, 0].isnan()).nonzero().tolist()
        distances = [((a - t) * 4) ** 2 + (b - i) ** 2 + (c - j) ** 2 for a, b, c in seen]
        near = sorted(zip(distances, seen, strict=True))
        if near[11][0] == near[12][0]:
            continue  # which of two equally distant points is the twelfth is a matter of luck
        weights = [1 / distance for distance, _ in near[:12]]
        values = [x[s, 0, a, b, c].item() for _, (a, b, c) in near[:12]]
        expected = np.average(values, weights=weights)
        assert guess[s, 0, t, i, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
        compared += 1
    assert compared > 10


def test_inverse_distance_of_a_constant_and_of_land():
    x = torch.full((1, 1, 2, 4, 4), 5.0)
    hidden = torch.zeros_like(x, dtype=torch.bool)
    hidden[..., :2] = True
    assert inverse_distance(x, torch.tensor([0]), hidden)[hidden].unique() == 5.0
    nothing = inverse_distance(torch.full_like(x, torch.nan), torch.tensor([0]), hidden)
    assert nothing.unique() == 0.0


def test_climatology_of_the_ocean():
    dataset = OceanDataset("val")
    guess = climatology(dataset, torch.tensor([3, 0]))
    assert guess.shape == (2, 1, 12, 16, 32)
    assert not guess.isnan().any()
    assert guess[1].equal(dataset.climatology(0).nan_to_num())


@pytest.mark.slow
def test_baselines_of_the_ocean():
    """What the model has to beat. The values are a property of the data and of the masks."""
    dataset = OceanDataset("val")
    model = MaskedAutoencoder(dataset.sample_shape)
    scores = score_baselines(model, DataLoader(dataset, 27), torch.device("cpu"))
    rmse = {name: score["rmse_surface_temperature"] for name, score in scores.items()}
    expected = {"inverse distance": 0.622, "climatology": 1.000, "visible mean": 1.425}
    assert rmse == pytest.approx(expected, abs=0.002)


def test_baselines_without_a_climatology(noise, model):
    """Noise: the mean of the visible values is wrong by 1, interpolation by more."""
    scores = score_baselines(model, DataLoader(noise, 7), torch.device("cpu"))
    assert set(scores) == {"inverse distance", "visible mean"}
    assert scores["visible mean"]["rmse_noise_0"] == pytest.approx(1.0, abs=0.1)
    assert scores["visible mean"]["rmse_noise_1"] == pytest.approx(3.0, abs=0.3)
    assert scores["inverse distance"]["rmse_noise_0"] > scores["visible mean"]["rmse_noise_0"]


def test_norm_pix_loss_validates_what_it_trains(noise):
    torch.manual_seed(0)
    model = MaskedAutoencoder(SHAPE, (2, 4, 4), embed_dim=12, num_heads=2, norm_pix_loss=True)
    x = torch.stack([noise[i][0] for i in range(7)])
    output = model(x, torch.arange(7))
    scores = validate(model, DataLoader(noise, 7), torch.device("cpu"))
    assert scores["val_loss"] == pytest.approx((output.squared_error / output.valid_count).item())


def test_scores_must_be_finite(noise, model):
    """A NaN would never be better or worse than the best so far."""
    with torch.no_grad():
        model.decoder.head.bias.fill_(torch.nan)
    with pytest.raises(UserError, match=r"validation gave .*nan"):
        validate(model, DataLoader(noise, 7), torch.device("cpu"))


DEVICES = [name for name in ("cuda", "mps") if getattr(torch, name).is_available()]


@pytest.mark.skipif(not DEVICES, reason="no GPU here")
def test_gpu_gives_the_scores_of_the_cpu(noise, model):
    expected = validate(model, DataLoader(noise, 7), torch.device("cpu"))
    for name in DEVICES:
        found = validate(model.to(name), DataLoader(noise, 7), torch.device(name))
        assert found == pytest.approx(expected, rel=1e-3)
