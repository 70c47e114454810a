"""The comparison with other masked autoencoders: they are what they are said to be.

What needs transformers is left out, unless it runs as
  uv run --project model_peers --with pytest --with pytest-xdist --with pytest-timeout \
      pytest tests/test_model_peers.py
"""

import importlib.util
import sys

import pytest
import torch
from model_peers import benchmark_models, profile_models
from model_peers.benchmark_models import Runner, table
from model_peers.candidates import CANDIDATES, SIZES, Size, canonical, ours, present, vitmae
from model_peers.canonical import CanonicalMAE
from src.errors import UserError

SMALL = Size(16, 4, 16, 2, 2, 12, 1, 2, batch=4)
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs transformers"
)


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def images() -> torch.Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_canonical_hides_three_quarters_and_learns():
    torch.manual_seed(0)
    model, loss = canonical(SMALL)
    hidden = model(images())[1]
    assert hidden.sum(dim=1).tolist() == [12.0] * 4
    assert not hidden[0].equal(hidden[1])
    first = loss(images()).item()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss(images()).backward()
        optimizer.step()
    assert loss(images()).item() < 0.8 * first


def test_canonical_does_not_look_at_hidden_patches():
    model = CanonicalMAE(16, 4, 3, 16, 2, 2, 12, 1, 2, mask_ratio=0.75)
    predicted = []
    model.head.register_forward_hook(lambda *call: predicted.append(call[-1]))
    x = images()
    torch.manual_seed(1)
    hidden = model(x)[1]
    patches = hidden.reshape(4, 1, 4, 1, 4, 1).expand(4, 3, 4, 4, 4, 4).reshape(4, 3, 16, 16)
    torch.manual_seed(1)
    model(torch.where(patches.bool(), 7.0, x))
    assert predicted[0].equal(predicted[1])
    torch.manual_seed(1)
    model(x + 1)
    assert not predicted[0].equal(predicted[2])


@needs_transformers
def test_canonical_is_as_large_as_vitmae():
    """All weights; biases and scales are the same too, so the numbers are equal."""
    assert parameters(canonical(SMALL).model) == parameters(vitmae(SMALL, "sdpa", False).model)


@needs_transformers
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_vitmae_is_of_the_same_size_and_learns(attention):
    model, loss = vitmae(SMALL, attention, compile=False)
    assert model.config._attn_implementation == attention
    loss(images()).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_ours_draws_new_masks_for_each_step():
    model, loss = ours(SMALL, compile=False)
    with torch.no_grad():
        assert loss(images()) != loss(images())
    # No class token, but twice the inputs: values, and which are valid.
    assert parameters(model) == parameters(canonical(SMALL).model) - 16 + 48 * 16
    assert parameters(ours(SMALL, compile=False, lean=True).model) == parameters(model)


def test_table_of_known_times():
    runners = {}
    for name, factor in (("ours", 1.0), ("theirs", 2.0)):
        runner = runners[name] = Runner(ours(SMALL, compile=False), images(), torch.float32)
        runner.times = {"step": [factor, 10 * factor, 3.0], "forward": [0.5 / factor] * 3}
    lines = table(runners).splitlines()
    assert lines[1].split()[2:] == ["3000.00", "1.00x", "500.00", "1.00x", *lines[1].split()[-2:]]
    assert lines[2].split()[2:6] == ["3000.00", "0.50x", "250.00", "2.00x"]
    assert lines[2].split()[-1] == "1.00"
    assert float(lines[1].split()[-2]) == pytest.approx(runner.kept() / 1e6, abs=0.05)


def test_a_turn_takes_steps_and_forward_passes():
    torch.manual_seed(0)
    runner = Runner(ours(SMALL, compile=False), images(), torch.float32)
    before = [p.detach().clone() for p in runner.model.parameters()]
    runner.turn(steps=2)
    assert {name: len(times) for name, times in runner.times.items()} == {"step": 1, "forward": 1}
    assert any(not one.equal(p) for one, p in zip(before, runner.model.parameters(), strict=True))


@pytest.mark.slow
def test_benchmark_of_those_that_are_here(monkeypatch, capsys):
    monkeypatch.setitem(SIZES, "small", SMALL)
    models = [name for name in present() if "compiled" not in name]
    words = ["--turns=2", "--steps=1", "--device=cpu", "--models", *models]
    monkeypatch.setattr(sys, "argv", ["benchmark_models.py", *words])
    assert benchmark_models.main() == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in models)


@pytest.mark.slow
def test_profile_divides_the_step(monkeypatch, capsys):
    monkeypatch.setitem(SIZES, "small", SMALL)
    words = ["--steps=1", "--device=cpu", "--models", "canonical", "this chapter"]
    monkeypatch.setattr(sys, "argv", ["profile_models.py", *words])
    monkeypatch.setattr(profile_models, "matrix_product", lambda device: 1e9)
    assert profile_models.main() == 0
    canonical_row, own_row = capsys.readouterr().out.splitlines()[-2:]
    products, attention, rest = (float(cell) for cell in canonical_row.split()[1:4])
    assert products > 0 < rest
    assert attention == 0  # its attention is made of matrix products
    assert float(own_row.split()[3]) > 0
    most = (products + attention + rest) / (products + attention)
    # The cells are rounded, and the smallest of them is a fifth of a millisecond.
    assert float(canonical_row.split()[-1].rstrip("x")) == pytest.approx(most, rel=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size=huge"], "--size: invalid choice"),
        (["--turns=0"], "--turns, --steps: allowed: from 1"),
        (["--models", "none"], "--models: invalid choice"),
        (["--stepps=1"], "--stepps=1 is no option"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, words, message):
    monkeypatch.setattr(sys, "argv", ["benchmark_models.py", *words])
    with pytest.raises(UserError, match=message) as caught:
        benchmark_models.main()
    assert "\n" not in str(caught.value)


def test_all_candidates_have_their_sizes():
    assert present()[-1] == "canonical"
    assert set(present()) <= set(CANDIDATES)
