"""What all trials of a study are scored on."""

import torch
from src.model.pytorch_model import MaskedAutoencoder
from src.study_task import shared_task

SIZES = [(3, 4, 4), (6, 4, 4), (3, 8, 8)]
SHAPE = (1, 12, 16, 32)


def ocean(batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples (B, V, T, H, W) with land: ragged, and a whole block of it."""
    x = torch.randn(batch, *SHAPE, generator=torch.Generator().manual_seed(0))
    x[..., 5:, 27:] = torch.nan
    x[1, :, :, :8, :8] = torch.nan
    return x, torch.arange(batch)


def test_all_models_see_and_are_scored_on_the_same_pixels():
    """Whatever their patch size, their mask ratio and their seed."""
    task, (x, index) = shared_task(SIZES, SHAPE[1:], 0.75), ocean()
    assert task.block == (6, 8, 8)
    seen = []
    for number, size in enumerate(SIZES):
        model = MaskedAutoencoder(SHAPE, size, mask_ratio=0.5 + number / 10, seed=number)
        with task.given_to(model):
            output = model(x, index)
        scored = output.hidden & ~torch.isnan(x)
        assert output.valid_count == scored.sum()
        seen.append((scored, ~output.hidden & ~torch.isnan(x)))
        # Hidden pixels do not reach the model, and visible ones do.
        for pixels, same in ((scored, True), (seen[-1][1], False)):
            with task.given_to(model):
                other = model(torch.where(pixels, x + 1, x), index).prediction
            assert other.equal(output.prediction) == same
    assert all(a.equal(b) for one in seen[1:] for a, b in zip(seen[0], one, strict=True))
    hidden = seen[0][0][0].float().mean()
    assert 0.5 < hidden < 0.8  # of all pixels, some of which are land


def test_the_model_has_its_own_masks_back():
    task, (x, index) = shared_task(SIZES, SHAPE[1:], 0.75), ocean()
    model = MaskedAutoencoder(SHAPE, SIZES[0])
    before = model(x, index).hidden
    with task.given_to(model):
        assert not model(x, index).hidden.equal(before)
    assert model(x, index).hidden.equal(before)


def test_a_sample_does_not_depend_on_its_batch():
    task, (x, index) = shared_task(SIZES, SHAPE[1:], 0.75), ocean()
    model = MaskedAutoencoder(SHAPE, SIZES[0])
    with task.given_to(model):
        whole, alone = model(x, index), model(x[1:2], index[1:2])
    assert whole.hidden[1:2].equal(alone.hidden)
    torch.testing.assert_close(whole.prediction[1:2], alone.prediction)


def test_a_lean_decoder_has_the_same_score():
    task, (x, index) = shared_task(SIZES, SHAPE[1:], 0.75), ocean()
    found = []
    for lean in (False, True):
        torch.manual_seed(0)
        model = MaskedAutoencoder(SHAPE, SIZES[0], lean_decoder=lean)
        with task.given_to(model):
            output = model(x, index)
        found.append((output.squared_error, output.prediction[output.hidden]))
    for whole, lean in zip(*found, strict=True):
        torch.testing.assert_close(lean, whole)
