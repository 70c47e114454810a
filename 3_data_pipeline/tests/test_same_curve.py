"""Scaling up changes no result: raw PyTorch, Lightning, two processes, by hand and sharded."""

import numpy as np
import pytest
import torch

from tests.lightning_runs import (
    OCEAN,
    TWO,
    call_lightning,
    curve,
    float32_rows,
    lightning_weights,
    on_two_ranks,
    run_cli,
    train_lightning,
)
from tests.runs import call, reference_run, rows, weights

TOLERANCE = 1e-5  # relative; only the order of the additions differs


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_lightning_is_raw_pytorch_to_the_bit(monkeypatch, tmp_path, num_workers):
    reference = reference_run(monkeypatch, tmp_path)
    assert train_lightning(monkeypatch, tmp_path, f"--data.num_workers={num_workers}") == 0
    folder = tmp_path / "run_1"
    # A loss has 32 bits and is written as it is; self.log rounds the rest to 32 bits.
    assert [r["train_loss"] for r in rows(reference)] == [r["train_loss"] for r in rows(folder)]
    assert float32_rows(reference) == float32_rows(folder)
    ours, theirs = lightning_weights(folder), weights(reference)
    assert ours.keys() == theirs.keys()
    assert all(ours[key].equal(theirs[key]) for key in ours)


@pytest.mark.slow(copies=True)
def test_real_ocean_and_clipped_gradients(monkeypatch, tmp_path):
    """The same with land, and a limit that every gradient exceeds."""
    settings = [*OCEAN, "--trainer.gradient_clip_val=0.05", "--trainer.max_epochs=1"]
    assert call(monkeypatch, *settings, f"--trainer.output_dir={tmp_path / 'raw'}") == 0
    output = f"--trainer.output_dir={tmp_path / 'lightning'}"
    assert call_lightning(monkeypatch, *settings, output) == 0
    raw, folder = tmp_path / "raw" / "run_1", tmp_path / "lightning" / "run_1"
    assert float32_rows(raw) == float32_rows(folder)
    assert all(a.equal(lightning_weights(folder)[key]) for key, a in weights(raw).items())


@pytest.mark.slow(copies=True)
def test_command_line_is_the_script(monkeypatch, tmp_path):
    """LightningCLI builds the same Trainer: the same rows and weights."""
    assert train_lightning(monkeypatch, tmp_path / "script") == 0
    assert run_cli(monkeypatch, "fit", tmp_path / "cli") == 0
    script, cli = tmp_path / "script" / "run_1", tmp_path / "cli" / "run_1"
    assert rows(script) == rows(cli)
    assert all(a.equal(lightning_weights(cli)[key]) for key, a in lightning_weights(script).items())


FEW = "--trainer.max_steps=10"
TRAININGS = {
    "DDP": ("lightning", "", TWO),
    "DDP by hand": ("by hand", "", []),
    "fully sharded": ("lightning", "", ["--trainer.devices=2", "--trainer.strategy=fsdp"]),
    "mean of means": ("lightning", "mean of means", [*TWO, FEW]),
    "masks by rank": ("lightning", "masks by rank", [*TWO, FEW]),
}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Folders of the trainings on two ranks and of the one on a single process: 76 steps each.

    Broken ones take fewer.
    """
    output = tmp_path_factory.mktemp("ranks")
    on_two_ranks(
        [
            (script, mutation, [*OCEAN, *more, f"--trainer.output_dir={output / name}"])
            for name, (script, mutation, more) in TRAININGS.items()
        ]
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = [*OCEAN, f"--trainer.output_dir={output / 'one'}"]
        assert call_lightning(monkeypatch, *arguments) == 0
    return {name: output / name / "run_1" for name in ("one", *TRAININGS)}


def difference(folders, name: str) -> float:
    """The largest relative difference of any loss from the single process."""
    one, other = curve(folders["one"]), curve(folders[name])
    steps = min(len(one), len(other))
    return float(np.max(np.abs(other[:steps] - one[:steps]) / one[:steps]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DDP", "DDP by hand", "fully sharded"])
def test_two_processes_have_the_curve_of_one(on_ranks, name):
    assert len(curve(on_ranks[name])) == len(curve(on_ranks["one"])) >= 50 + 2
    assert difference(on_ranks, name) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean of means", "masks by rank"])
def test_the_comparison_notices_a_broken_training(on_ranks, name):
    """A loss averaged per rank, or masks that depend on the rank, are far outside."""
    assert len(curve(on_ranks[name])) >= 10
    assert difference(on_ranks, name) > 100 * TOLERANCE


@pytest.mark.slow
def test_checkpoints_hold_whole_weights(on_ranks):
    """Also where each rank has only a share of them."""
    one = lightning_weights(on_ranks["one"])
    for name in ("DDP", "fully sharded"):
        other = lightning_weights(on_ranks[name])
        assert other.keys() == one.keys()
        ours, theirs = (torch.cat([w.flatten() for w in of.values()]) for of in (other, one))
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-3
