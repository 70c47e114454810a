"""What makes the step faster changes no result: compiling, recomputing, a fused optimiser."""

import shutil
from functools import partial

import pytest
import torch
from kept_memory import kept_bytes
from src.errors import UserError
from src.model.pytorch_model import MaskedAutoencoder
from src.optim import make_optimizer
from torch._dynamo.utils import counters

from tests.lightning_runs import OCEAN, call_lightning
from tests.runs import rows

SHAPE = (1, 4, 8, 8)
SIZES = {"patch_size": (2, 4, 4), "embed_dim": 16, "decoder_embed_dim": 16, "depth": 1}
ONE_BLOCK = ["--model.depth=1", "--model.decoder_depth=1"]  # more take longer to compile
needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"
)


def small_model(**settings) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(SHAPE, **(SIZES | settings))


def fields(batch: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Normal numbers, of which some are missing."""
    x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
    return x.masked_fill(x > 1.5, torch.nan)


def gradients(
    model: MaskedAutoencoder, epoch: int = 0, x: torch.Tensor | None = None
) -> list[torch.Tensor]:
    x = fields(4) if x is None else x
    model.zero_grad()
    model(x, torch.arange(len(x)), epoch).squared_error.backward()
    return [p.grad.clone() for p in model.parameters()]


def test_recomputed_gradients_are_the_same():
    plain, again = small_model(), small_model(activation_checkpointing=True)
    for one, other in zip(gradients(plain), gradients(again), strict=True):
        assert one.equal(other)


def test_recomputing_keeps_less():
    x, index = fields(16), torch.arange(16)

    def kept(**settings) -> int:
        model = small_model(depth=6, decoder_depth=6, **settings)
        return kept_bytes(lambda: model(x, index, 0).squared_error, model.parameters())

    assert kept(activation_checkpointing=True) < 0.35 * kept()


def test_nothing_is_recomputed_without_gradients(monkeypatch):
    monkeypatch.setattr("src.model.transformer.checkpoint", None)
    with torch.no_grad():
        small_model(activation_checkpointing=True)(fields(2), torch.arange(2))


def test_fused_adamw_takes_the_same_steps():
    losses: dict[bool, list[float]] = {False: [], True: []}
    for fused, own in losses.items():
        model = small_model()
        optimizer, scheduler = make_optimizer(model, 20, fused=fused)
        assert optimizer.param_groups[0]["fused"] == (fused or None)
        for epoch in range(20):
            gradients(model, epoch)
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                own.append(model(fields(8), torch.arange(8)).squared_error.item())
    # The weights differ more: where a gradient is zero but for rounding, AdamW steps by its sign.
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert losses[True][-1] < 0.95 * losses[True][0]


def test_new_tensors_are_not_filled():
    """NaN would be written to them if deterministic mode had its way."""
    small = small_model()
    with torch.random.fork_rng():
        from src.reproducibility import set_seed

        set_seed(0)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert gradients(small)


@pytest.mark.slow
@pytest.mark.parametrize("lean", [False, True])
def test_two_graphs_for_training_and_validation(monkeypatch, lean):
    """One each, whatever the epoch, and however small the last batch is; with land alone, too.

    The backend makes graphs and no kernels, which take long: the training below has those, and
    the ladder's last rung those of the lean decoder.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()
    shape, sizes = (1, 12, 16, 32), {"embed_dim": 16, "decoder_embed_dim": 16, "depth": 1}
    torch.manual_seed(0)
    plain = MaskedAutoencoder(shape, **sizes)
    compiled = MaskedAutoencoder(shape, **sizes, compile=True, lean_decoder=lean)
    assert list(plain.state_dict()) == list(compiled.state_dict())
    compiled.load_state_dict(plain.state_dict())
    x = fields(8, shape)
    x[0] = torch.nan
    for epoch in range(4):
        pairs = zip(gradients(plain, epoch, x), gradients(compiled, epoch, x), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4 * one.abs().max().item())
        # As large as in training at first: another size would make the compiler expect others.
        for batch in (8, 8, 3):
            with torch.no_grad():
                expected = plain(x[:batch], torch.arange(batch))
                found = compiled(x[:batch], torch.arange(batch))
            hidden = expected.hidden
            pairs = [*zip(found[:2], expected[:2], strict=True), (found.hidden, hidden)]
            pairs.append((found.prediction[hidden], expected.prediction[hidden]))
            for one, other in pairs:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


@pytest.mark.slow
def test_no_compiler_is_one_line(monkeypatch, tmp_path):
    """And not the compiler's long story."""
    torch.compiler.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch._inductor.config.patch({"cpp.cxx": (None, str(tmp_path / "none"))}):
        model = small_model(compile=True)
        with pytest.raises(UserError, match=r"needs a C\+\+ compiler.*allowed: false"):
            model(fields(4), torch.arange(4), 0)
    torch.compiler.reset()


@pytest.mark.slow
@needs_compiler
def test_compiled_training_with_pictures(monkeypatch, tmp_path):
    """Training, validation, scores and pictures; the curve is that without the compiler."""
    torch.compiler.reset()
    counters.clear()
    settings = [*OCEAN, "--data.dataset=OceanDataset", "--trainer.picture_every_n_epochs=1"]
    settings += ONE_BLOCK
    for name in ("false", "true"):
        words = [f"--model.compile={name}", f"--trainer.output_dir={tmp_path / name}"]
        assert call_lightning(monkeypatch, *settings, *words) == 0
    runs = [tmp_path / name / "run_1" for name in ("false", "true")]
    for one, other in zip(*map(rows, runs), strict=True):
        for key, value in one.items():
            if value:
                assert float(other[key]) == pytest.approx(float(value), rel=1e-4)
    assert (runs[1] / "reconstructions.png").read_bytes().startswith(b"\x89PNG")
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] <= 3  # training, validation, and pictures


@pytest.mark.slow
@needs_compiler
def test_checkpoint_of_a_compiled_run_loads_without(monkeypatch, tmp_path):
    from src.model.lightning_module import AutoencoderModule

    torch.compiler.reset()
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    words = ["--data.dataset=OceanDataset", "--model.compile=true", "--trainer.max_epochs=1"]
    words += ONE_BLOCK
    words += ["--trainer.max_steps=3", f"--trainer.output_dir={tmp_path}"]
    assert call_lightning(monkeypatch, *OCEAN, *words) == 0
    assert not torch.utils.deterministic.fill_uninitialized_memory  # Lightning has no say in it
    place = tmp_path / "run_1" / "checkpoints" / "last.ckpt"
    module = AutoencoderModule.load_from_checkpoint(place, map_location="cpu", compile=False)
    assert "forward" not in vars(module.model)
