"""The lean decoder leaves out work, and no result: losses, gradients, predictions, checkpoints."""

import pytest
import torch
from kept_memory import kept_bytes
from src.model.pytorch_model import MaskedAutoencoder
from torch.utils.flop_counter import FlopCounterMode

from tests.lightning_runs import OCEAN, call_lightning
from tests.runs import rows
from tests.test_micro_batches import LEAN, difference

SHAPE = (1, 12, 16, 32)
FORMS = [
    {},
    {"decoder_depth": 1},
    {"decoder_depth": 4},
    {"mask_ratio": 0.4},
    {"norm_pix_loss": True},
    {"activation_checkpointing": True},
]


def model_of(**settings) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(SHAPE, **settings)


def fields_with_land() -> torch.Tensor:
    """Samples with a coast, with little ocean, with none, and without land."""
    x = torch.randn(8, *SHAPE, generator=torch.Generator().manual_seed(0))
    x[:-1, ..., :5, :9] = torch.nan
    x[3, ..., 6:] = torch.nan
    x[4] = torch.nan
    return x


@pytest.mark.parametrize("settings", FORMS, ids=str)
def test_the_same_numbers(settings):
    x, index = fields_with_land(), torch.arange(8)
    whole, lean = model_of(**settings), model_of(**settings, lean_decoder=True)
    # The same weights from the same seed, under the same names.
    for one, other in zip(whole.state_dict().items(), lean.state_dict().items(), strict=True):
        assert one[0] == other[0]
        assert one[1].equal(other[1])
    # As trained, and not as built, with biases of zeros and all norms alike.
    for weight in whole.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    lean.load_state_dict(whole.state_dict())
    expected, found = whole(x, index, 3), lean(x, index, 3)
    torch.testing.assert_close(found.squared_error, expected.squared_error)
    assert found.valid_count == expected.valid_count > 0
    assert found.hidden.equal(expected.hidden)
    hidden = expected.hidden
    torch.testing.assert_close(found.prediction[hidden], expected.prediction[hidden])
    for output in (expected, found):
        (output.squared_error / output.valid_count).backward()
    for one, other in zip(whole.parameters(), lean.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-6)


def test_in_bfloat16():
    """Automatic precision has numbers of two types, which must not meet in one tensor."""
    x, index = fields_with_land(), torch.arange(8)
    found = []
    for lean in (False, True):
        model = model_of(lean_decoder=lean)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x, index, 3)
        (output.squared_error / output.valid_count).backward()
        found.append([output.squared_error, *(p.grad.norm() for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=0.05, atol=1e-3)


def test_less_work_and_less_memory():
    x, index = torch.randn(8, *SHAPE), torch.arange(8)
    found = []
    for lean in (False, True):
        model = model_of(lean_decoder=lean)
        with FlopCounterMode(display=False) as counter:
            kept = kept_bytes(lambda m=model: m(x, index, 0).squared_error, model.parameters())
            model(x, index, 0).squared_error.backward()
        found.append((counter.get_total_flops(), kept))
    (work, memory), (less_work, less_memory) = found
    assert less_work < 0.87 * work
    assert less_memory < 0.92 * memory


@pytest.mark.slow(copies=True)
def test_training_has_the_same_curve(monkeypatch, tmp_path):
    """76 steps on real ocean with land, validation, scores."""
    words = [*OCEAN, "--data.dataset=OceanDataset"]
    for name, lean in (("whole", []), ("lean", [LEAN])):
        place = f"--trainer.output_dir={tmp_path / name}"
        assert call_lightning(monkeypatch, *words, *lean, place) == 0
    runs = [tmp_path / name / "run_1" for name in ("whole", "lean")]
    assert difference(*runs) < 1e-4
    scores = [
        [
            float(row["rmse_surface_temperature"])
            for row in rows(run)
            if row.get("rmse_surface_temperature")
        ]
        for run in runs
    ]
    assert scores[0]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)
