"""A batch in parts has the gradients of the whole one, on one rank and on two; so has compiling."""

import os

import numpy as np
import pytest
from src.lightning_ranks import SharedError
from src.model.pytorch_model import MaskedAutoencoder

from tests.lightning_runs import OCEAN, TWO, call_lightning, curve, on_two_ranks
from tests.test_fast_model import ONE_BLOCK, needs_compiler

TOLERANCE = 1e-5  # relative; only the order of the additions differs
MEMORY = ["--data.dataset=OceanDataset", *ONE_BLOCK]
PARTS = ["--trainer.micro_batches=2"]
LEAN = "--model.lean_decoder=true"
SHORTER = ["--trainer.max_steps=50"]


def difference(one, other) -> float:
    """The largest relative difference of any loss; the other run may have stopped earlier."""
    found = curve(other)
    expected = curve(one)[: len(found)]
    return float(np.max(np.abs(found - expected) / expected))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of the run that computes each batch at once: 76 steps on real ocean with land."""
    output = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        words = [*OCEAN, *MEMORY, f"--trainer.output_dir={output}"]
        assert call_lightning(monkeypatch, *words) == 0
    return output / "run_1"


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "sizes"), [(4, [2, 2, 2, 2]), (3, [3, 3, 2]), (8, [1] * 8)])
def test_parts_have_the_curve_of_the_whole(whole, monkeypatch, tmp_path, parts, sizes):
    seen = []
    forward = MaskedAutoencoder.forward
    monkeypatch.setattr(
        MaskedAutoencoder,
        "forward",
        lambda self, x, *rest: (seen.append((self.training, len(x))), forward(self, x, *rest))[1],
    )
    words = [f"--trainer.micro_batches={parts}", f"--trainer.output_dir={tmp_path}"]
    assert call_lightning(monkeypatch, *OCEAN, *MEMORY, *words) == 0
    assert len(curve(tmp_path / "run_1")) == len(curve(whole)) == 76 + 2  # steps and validations
    assert difference(whole, tmp_path / "run_1") < TOLERANCE
    assert [size for training, size in seen if training][:parts] == sizes


@pytest.mark.parametrize("parts", [0, 9])
def test_parts_that_make_no_sense(monkeypatch, tmp_path, parts):
    words = [f"--trainer.micro_batches={parts}", f"--trainer.output_dir={tmp_path}"]
    message = f"micro_batches: {parts} parts of a batch of 8 samples .*; allowed: from 1 to 8$"
    with pytest.raises(SharedError, match=message):
        call_lightning(monkeypatch, *OCEAN, *MEMORY, *words)


ON_RANKS = {
    "DDP": [*TWO, *PARTS],
    "fully sharded": ["--trainer.devices=2", "--trainer.strategy=fsdp", *PARTS],
    "fully sharded, lean": ["--trainer.devices=2", "--trainer.strategy=fsdp", LEAN],
}
if os.environ.get("FULL_MATRIX"):  # takes longer than all the others together: see README.md
    ON_RANKS["compiled"] = [*TWO, "--model.compile=true"]


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Folders of the trainings on two ranks."""
    output = tmp_path_factory.mktemp("ranks")
    on_two_ranks(
        [
            (
                "lightning",
                "",
                [*OCEAN, *MEMORY, *SHORTER, *more, f"--trainer.output_dir={output / name}"],
            )
            for name, more in ON_RANKS.items()
        ]
    )
    return {name: output / name / "run_1" for name in ON_RANKS}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ON_RANKS)
def test_two_ranks_have_the_curve_of_one(whole, on_ranks, name):
    assert len(curve(on_ranks[name])) == 50 + 1
    limit = 10 * TOLERANCE if name == "compiled" else TOLERANCE
    assert difference(whole, on_ranks[name]) < limit
