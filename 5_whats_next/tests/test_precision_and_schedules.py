"""float16's scaler and its two traps; schedules that are PyTorch's; the scripts that compare."""

import compare_precision
import compare_schedules
import lightning_train
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, StepLR

from src.model.lightning_module import AutoencoderModule
from src.run.errors import UserError
from src.run.optim import make_optimizer
from tests.runs import TINY, call, train

FLOAT16 = ["--trainer.cloud_storage_path=none", "--trainer.max_epochs=8"]


@pytest.fixture
def float16(monkeypatch):
    """16-mixed on a CPU, where only the tests have it."""
    real = lightning_train.L.Trainer

    def trainer(plugins, precision, **settings):
        return real(plugins=[*plugins, MixedPrecision("16-mixed", "cpu")], **settings)

    monkeypatch.setattr(lightning_train.L, "Trainer", trainer)


def test_gradients_are_clipped_without_their_scale(monkeypatch, tmp_path, request):
    """Broken by: no unscale_ before the clipping of a fused optimiser."""
    norms, real = [], torch.nn.utils.clip_grad_norm_
    record = lambda *a: norms.append(real(*a)) or norms[-1]  # noqa: E731
    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", record)
    words = [*FLOAT16, "--optimizer.fused=true"]
    train(monkeypatch, tmp_path / "float32", *words)
    expected = norms[:8]
    norms.clear()
    request.getfixturevalue("float16")
    train(monkeypatch, tmp_path / "float16", *words)
    torch.testing.assert_close(norms[:8], expected, rtol=0.1, atol=0)


def test_lasting_overflow_ends_the_run(monkeypatch, tmp_path, float16):
    """Instead of leaving out all steps. Broken by: no look at the scale in check_finite."""
    real = AutoencoderModule.training_step
    monkeypatch.setattr(AutoencoderModule, "training_step", lambda *a: real(*a) * 1e30)
    with pytest.raises(UserError, match=r"step \d+: float16 overflows in each step"):
        train(monkeypatch, tmp_path, *FLOAT16)


@pytest.mark.parametrize("kind", [CosineAnnealingWarmRestarts, StepLR])
def test_schedules_are_torchs_after_a_warmup(kind):
    """Broken by: a period of the whole training, or one that counts the warmup."""
    model, name = torch.nn.Linear(2, 2), "step" if kind is StepLR else "restarts"
    _, ours = make_optimizer(model, 100, lr=0.1, warmup_fraction=0.1, schedule=name)
    theirs = kind(torch.optim.SGD(model.parameters(), 0.1), 30)
    for step in range(100):
        rate = theirs.get_last_lr()[0] if step >= 10 else 0.1 * (step + 1) / 11
        assert ours.get_last_lr()[0] == pytest.approx(rate, abs=1e-9)
        for scheduler in (ours, theirs) if step >= 10 else (ours,):
            scheduler.optimizer.step()
            scheduler.step()


@pytest.mark.slow
def test_precisions_and_schedules_are_compared(monkeypatch, tmp_path, capsys):
    """In a training that is all warmup, all schedules are one. Broken by: a seed of its own."""
    monkeypatch.setattr("short_run.CHAPTER", tmp_path)
    epochs = "--trainer.max_epochs=3"
    monkeypatch.setattr(compare_precision, "TURNS", 1)
    monkeypatch.setattr(compare_schedules, "SEEDS", 2)
    for script in (compare_precision, compare_schedules):
        warmup = "--optimizer.warmup_fraction=1"
        call(monkeypatch, TINY, epochs, warmup, script=script)
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert {"32-true", "bf16-mixed", "cosine", "constant", "step", "restarts"} <= set(
        rows
    )
    assert "1.00x" in rows["32-true"]
    for schedule in ("cosine", "constant", "step", "restarts"):
        assert rows[schedule].endswith("+0.0000  +0.0000")
    pictures = {path.parent.name for path in tmp_path.glob("output/*/curves.png")}
    assert pictures == {"precision", "schedules"}
