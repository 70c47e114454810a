"""Counting: the formulas agree with what PyTorch counts, whatever the sizes."""

import pytest
import torch
from count_step import counted_flops, loss_of, sizes_of
from kept_memory import kept_bytes
from model_peers.candidates import SIZES, ours
from src.model.pytorch_model import MaskedAutoencoder
from step_formulas import activation_bytes, step_flops

SHAPES = [
    ((1, 12, 16, 32), {}),
    ((3, 1, 32, 32), {"patch_size": (1, 4, 4), "embed_dim": 48, "depth": 3}),
    ((2, 4, 16, 16), {"patch_size": (2, 2, 2), "decoder_embed_dim": 32, "decoder_depth": 1}),
    ((1, 1, 64, 64), {"patch_size": (1, 4, 4), "mask_ratio": 0.5, "num_heads": 2}),
    ((1, 12, 16, 32), {"activation_checkpointing": True, "depth": 6, "decoder_depth": 4}),
    ((1, 12, 16, 32), {"lean_decoder": True}),
    ((1, 12, 16, 32), {"lean_decoder": True, "decoder_depth": 1}),
    ((3, 1, 32, 32), {"lean_decoder": True, "patch_size": (1, 4, 4), "decoder_depth": 4}),
    ((1, 12, 16, 32), {"lean_decoder": True, "activation_checkpointing": True, "decoder_depth": 3}),
]


@pytest.fixture(params=SHAPES, ids=lambda shape: "x".join(map(str, shape[0])))
def work(request):
    """A model, a batch of three samples, its numbers."""
    shape, settings = request.param
    return MaskedAutoencoder(shape, **settings), torch.randn(3, *shape), torch.arange(3)


def test_flops(work):
    model, x, index = work
    formula = step_flops(sizes_of(model, len(x)))
    assert formula == pytest.approx(counted_flops(model, x, index), rel=1e-3)


@pytest.mark.parametrize(("size", "share"), [("small", 1 / 7), ("tiny", 1 / 20)])
def test_share_that_the_lean_decoder_leaves_out(size, share):
    """The fractions that README.md names for the sizes of its comparison."""
    shape = SIZES[size]
    models = [ours(shape, compile=False, lean=lean).model for lean in (False, True)]
    whole, lean = (step_flops(sizes_of(model, shape.batch))[1] for model in models)
    assert 1 - lean / whole == pytest.approx(share, rel=0.15)


def test_memory_kept_for_the_gradients(work):
    model, x, index = work
    kept = kept_bytes(lambda: loss_of(model(x, index, 0)), model.parameters())
    assert activation_bytes(sizes_of(model, len(x))) == pytest.approx(kept, rel=0.02)


def test_kept_bytes_count_a_storage_once():
    """Two maps of the same input keep it once; weights are not counted."""
    a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    x = torch.randn(10, 4)
    weights = [*a.parameters(), *b.parameters()]
    assert kept_bytes(lambda: (a(x) + b(x)).sum(), weights) == 10 * 4 * 4
    assert kept_bytes(lambda: (a(x) + b(x)).sum(), [*weights, x]) == 0
