"""float16's scaler and its two traps; schedules that are PyTorch's; the scripts that compare."""

import lightning_train
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from src.errors import UserError
from src.model.lightning_module import AutoencoderModule
from src.optim import make_optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, StepLR

from tests.runs import TINY, call, train

FLOAT16 = ["--trainer.cloud_storage_path=none", "--trainer.max_epochs=8"]


@pytest.fixture
def float16(monkeypatch):
    """16-mixed on a CPU, where only the tests have it."""
    real = lightning_train.L.Trainer

    def trainer(plugins, precision, **settings):
        return real(plugins=[*plugins, MixedPrecision("16-mixed", "cpu")], **settings)

    monkeypatch.setattr(lightning_train.L, "Trainer", trainer)


@pytest.fixture
def norms(monkeypatch):
    """The norms of the gradients that are clipped."""
    norms, clip = [], torch.nn.utils.clip_grad_norm_

    def record(parameters, limit):
        norms.append(float(clip(list(parameters), limit)))
        return torch.tensor(norms[-1])

    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", record)
    return norms


@pytest.mark.parametrize("fused", ["false", "true"])
def test_gradients_are_clipped_without_their_scale(monkeypatch, tmp_path, norms, fused, request):
    """Broken by: no unscale_ before the clipping of a fused optimiser."""
    words = [*FLOAT16, f"--optimizer.fused={fused}"]
    train(monkeypatch, tmp_path / "float32", *words, script=lightning_train)
    expected = torch.tensor(norms)
    norms.clear()
    request.getfixturevalue("float16")
    train(monkeypatch, tmp_path / "float16", *words, script=lightning_train)
    torch.testing.assert_close(torch.tensor(norms)[:8], expected[:8], rtol=0.1, atol=0)


def test_lasting_overflow_ends_the_run(monkeypatch, tmp_path, float16):
    """Instead of leaving out all steps. Broken by: no look at the scale in check_finite."""
    real = AutoencoderModule.training_step
    monkeypatch.setattr(AutoencoderModule, "training_step", lambda *a: real(*a) * 1e30)
    with pytest.raises(UserError, match=r"step \d+: float16 overflows in each step"):
        train(monkeypatch, tmp_path, *FLOAT16, script=lightning_train)


@pytest.mark.parametrize(
    ("schedule", "torchs"),
    [
        ("restarts", lambda optimizer: CosineAnnealingWarmRestarts(optimizer, T_0=30)),
        ("step", lambda optimizer: StepLR(optimizer, step_size=30)),
        ("constant", lambda optimizer: StepLR(optimizer, step_size=10**6)),
    ],
)
def test_schedules_are_torchs_after_a_warmup(schedule, torchs):
    """Broken by: a period of the whole training, or one that counts the warmup."""
    model = torch.nn.Linear(2, 2)
    settings = {"lr": 0.1, "warmup_fraction": 0.1, "schedule": schedule, "periods": 3}
    optimizer, ours = make_optimizer(model, 100, **settings)
    theirs = torchs(torch.optim.SGD(model.parameters(), 0.1))
    rates = []
    for _ in range(100):
        rates.append(ours.get_last_lr()[0])
        optimizer.step()
        ours.step()
    assert rates[:10] == pytest.approx([0.1 * (n + 1) / 11 for n in range(10)])
    for rate in rates[10:]:
        assert rate == pytest.approx(theirs.get_last_lr()[0], abs=1e-9)
        theirs.optimizer.step()
        theirs.step()


@pytest.mark.slow
def test_precisions_and_schedules_are_compared(monkeypatch, tmp_path, capsys):
    """Broken by: another seed for a schedule; steps of the sanity check in the scores."""
    import compare_precision
    import compare_schedules

    monkeypatch.setattr("short_run.CHAPTER", tmp_path)
    call(monkeypatch, TINY, "--turns=1", script=compare_precision)
    call(monkeypatch, TINY, "--seeds=2", "--trainer.max_epochs=8", script=compare_schedules)
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert {"32-true", "bf16-mixed", "cosine", "constant", "step", "restarts"} <= set(names)
    assert "1.00x" in lines[names.index("32-true")]
    assert lines[names.index("cosine")].endswith("+0.0000  +0.0000")
    assert {path.parent.name for path in tmp_path.glob("output/*/curves.png")} == {
        "precision",
        "schedules",
    }
