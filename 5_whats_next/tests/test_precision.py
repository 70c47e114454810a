"""Mixed precision: clipped, left out, resumed and refused as it should be.

float16 needs a GPU in a training, but PyTorch can emulate it on a CPU, scaler included. Here a
plugin that Lightning would not make by itself does that.
"""

import lightning as L
import lightning_train
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from src.errors import UserError
from src.model.lightning_module import AutoencoderModule
from src.model.pytorch_model import MaskedAutoencoder
from torch.amp import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.lightning_runs import (
    assert_same_lightning_run,
    call_lightning,
    curve,
    run_cli,
    step_of,
    train_lightning,
)
from tests.runs import rows

LIMIT = 0.05  # every gradient of the tiny model exceeds it
Trainer = L.Trainer


def half_on_cpu(monkeypatch: pytest.MonkeyPatch, **scaler: float) -> None:
    """Train in emulated float16, whatever the settings say; arguments are those of GradScaler."""

    def new_trainer(**settings) -> L.Trainer:
        del settings["precision"]
        plugin = MixedPrecision("16-mixed", "cpu", GradScaler("cpu", **scaler))
        return Trainer(**settings | {"plugins": [*settings["plugins"], plugin]})

    monkeypatch.setattr(lightning_train.L, "Trainer", new_trainer)


def scaler_of(folder) -> dict[str, float]:
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return checkpoint["MixedPrecision"]


@pytest.fixture
def norms():
    """The norm of the gradient that each optimiser step is given."""
    found: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        grads = [p.grad for g in optimizer.param_groups for p in g["params"]]
        found.append(float(torch.nn.utils.get_total_norm(grads)))

    handle = register_optimizer_step_pre_hook(note)
    yield found
    handle.remove()


@pytest.fixture
def samples(monkeypatch):
    """The numbers of the samples of each step."""
    found: list[list[int]] = []
    step = AutoencoderModule.training_step

    def note(self: AutoencoderModule, batch: tuple, batch_idx: int) -> torch.Tensor:
        found.append(batch[1].tolist())
        return step(self, batch, batch_idx)

    monkeypatch.setattr(AutoencoderModule, "training_step", note)
    return found


@pytest.fixture(scope="module")
def float32(tmp_path_factory):
    output = tmp_path_factory.mktemp("float32")
    with pytest.MonkeyPatch.context() as monkeypatch:
        limit = f"--trainer.gradient_clip_val={LIMIT}"
        assert train_lightning(monkeypatch, output, limit) == 0
    return output / "run_1"


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("fused", ["true", "false"])
def test_gradients_are_clipped_without_the_scale(monkeypatch, tmp_path, float32, norms, fused):
    """A gradient that is clipped with its scale in it has the same norm: the curve tells."""
    half_on_cpu(monkeypatch)
    words = [f"--trainer.gradient_clip_val={LIMIT}", f"--optimizer.fused={fused}"]
    assert train_lightning(monkeypatch, tmp_path, *words) == 0
    assert norms == pytest.approx(12 * [LIMIT], rel=1e-3)
    assert curve(tmp_path / "run_1") == pytest.approx(curve(float32), rel=2e-3)


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("fused", ["true", "false"])
def test_overflow_leaves_steps_out_and_nothing_else(monkeypatch, tmp_path, float32, samples, fused):
    """The samples and the learning rates follow the steps, also those that are left out."""
    limit = f"--trainer.gradient_clip_val={LIMIT}"
    half_on_cpu(monkeypatch, init_scale=2.0**22, growth_interval=1000)
    words = [limit, f"--optimizer.fused={fused}"]
    assert train_lightning(monkeypatch, tmp_path, *words) == 0
    folder = tmp_path / "run_1"
    left_out = 22 - int(torch.tensor(scaler_of(folder)["scale"]).log2())
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    states = checkpoint["optimizer_states"][0]["state"]
    assert 1 <= left_out < 12
    assert {int(state["step"]) for state in states.values()} == {12 - left_out}
    assert checkpoint["global_step"] == 12
    for key in ("step", "epoch", "lr"):
        assert [row[key] for row in rows(folder)] == [row[key] for row in rows(float32)]
    given = list(samples)
    samples.clear()
    monkeypatch.setattr(lightning_train.L, "Trainer", Trainer)
    assert train_lightning(monkeypatch, tmp_path / "again", limit) == 0
    assert given == samples


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("step", [1, 3, 7])
def test_scaler_goes_on_after_a_resume(monkeypatch, tmp_path, step):
    """To the bit, with a scale that overflows at first and grows later."""
    half_on_cpu(monkeypatch, init_scale=2.0**24, growth_interval=2)
    for name, last in (("whole", -1), ("parts", step)):
        words = [f"--trainer.output_dir={tmp_path / name}", f"--trainer.max_steps={last}"]
        assert train_lightning(monkeypatch, tmp_path, *words) == 0
    whole, folder = tmp_path / "whole" / "run_1", tmp_path / "parts" / "run_1"
    assert step_of(folder) == step
    assert scaler_of(folder)["scale"] != scaler_of(whole)["scale"] != 2.0**24
    assert call_lightning(monkeypatch, f"--resume={folder}", "--trainer.max_steps=-1") == 0
    assert_same_lightning_run(whole, folder)
    assert scaler_of(folder) == scaler_of(whole)


def test_scale_that_collapses_ends_the_run(monkeypatch, tmp_path):
    """The scaler alone would leave out all steps for ever, and the run would end well."""
    forward = MaskedAutoencoder.forward

    def broken(self, *arguments):
        output = forward(self, *arguments)
        return output._replace(squared_error=output.squared_error * torch.inf)

    monkeypatch.setattr(MaskedAutoencoder, "forward", broken)
    monkeypatch.setattr(AutoencoderModule, "on_validation_epoch_end", lambda self: None)
    half_on_cpu(monkeypatch, init_scale=8.0)
    # 8, 4 and 2 may be the scale's fault, and 1 is not.
    with pytest.raises(UserError, match=r"step 4: the norm of the gradient is nan"):
        train_lightning(monkeypatch, tmp_path)


@pytest.mark.slow(copies=True)
def test_bfloat16_is_close_and_resumes_to_the_bit(monkeypatch, tmp_path, float32):
    limit = f"--trainer.gradient_clip_val={LIMIT}"
    for name, last in (("whole", -1), ("parts", 6)):
        words = [limit, "--trainer.precision=bf16-mixed", f"--trainer.max_steps={last}"]
        output = f"--trainer.output_dir={tmp_path / name}"
        assert train_lightning(monkeypatch, tmp_path, output, *words) == 0
    whole, folder = tmp_path / "whole" / "run_1", tmp_path / "parts" / "run_1"
    assert call_lightning(monkeypatch, f"--resume={folder}", "--trainer.max_steps=-1") == 0
    assert_same_lightning_run(whole, folder)
    assert curve(folder) == pytest.approx(curve(float32), rel=1e-2)
    assert (curve(folder) != curve(float32)).all()


@pytest.mark.slow(copies=True)
def test_batch_in_parts_is_the_whole_one(monkeypatch, tmp_path):
    """In emulated float16: each part is scaled, and all are divided by the scale once."""
    half_on_cpu(monkeypatch)
    for name, parts in (("whole", 1), ("parts", 4)):
        words = [f"--trainer.output_dir={tmp_path / name}", f"--trainer.micro_batches={parts}"]
        assert train_lightning(monkeypatch, tmp_path, *words) == 0
    whole, parted = (curve(tmp_path / name / "run_1") for name in ("whole", "parts"))
    assert parted == pytest.approx(whole, rel=2e-3)


def test_lightning_refuses_what_it_would_replace(monkeypatch, tmp_path):
    message = r"trainer.precision: 16-mixed needs a GPU; allowed on the CPU: 32-true, bf16-mixed"
    with pytest.raises(UserError, match=message):
        train_lightning(monkeypatch, tmp_path, "--trainer.precision=16-mixed")
    for name in ("16-mixed", "16"):
        with pytest.raises(UserError, match=r"needs a GPU"):
            run_cli(monkeypatch, "fit", tmp_path, f"--trainer.precision={name}")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow(copies=True)
def test_command_line_reads_it(monkeypatch, tmp_path):
    words = ["--trainer.precision=bf16-mixed", "--trainer.max_epochs=1"]
    assert run_cli(monkeypatch, "fit", tmp_path / "cli", *words) == 0
    assert train_lightning(monkeypatch, tmp_path / "script", *words) == 0
    assert_same_lightning_run(tmp_path / "cli" / "run_1", tmp_path / "script" / "run_1")


def test_unknown_precision_is_one_line(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"precision.*bf16-mixed.*64-true") as error:
        train_lightning(monkeypatch, tmp_path, "--trainer.precision=64-true")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm_pix_loss", [False, True])
def test_errors_are_summed_in_float32(dtype, norm_pix_loss):
    """In float16 this sum is infinite, and in bfloat16 it stops growing at three digits."""
    torch.manual_seed(0)
    model = MaskedAutoencoder((1, 4, 8, 8), (2, 4, 4), norm_pix_loss=norm_pix_loss)
    x = 50 * torch.randn(16, 1, 4, 8, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        output = model(x, torch.arange(16), 0)
    assert output.squared_error.dtype == torch.float32
    if norm_pix_loss:
        assert torch.isfinite(output.squared_error)
        return
    error = torch.where(output.hidden, output.prediction.double() - x.double(), 0.0)
    assert float(error.square().sum()) > torch.finfo(torch.float16).max
    assert float(output.squared_error) == pytest.approx(float(error.square().sum()), rel=1e-6)
