"""The ladder: no rung changes a loss, the table tells what was measured, bad files are one line."""

import json
import os
import sys
from functools import partial

import pytest
import step_ladder
import torch
import yaml
from ladder_report import summarise, table
from slow_module import ExplicitAttention, OneByOne
from src.config import CHAPTER
from src.errors import UserError
from src.model.masking import random_mask
from src.model.pytorch_model import MaskedAutoencoder
from src.model.transformer import Attention
from step_ladder import Rung, read_ladder
from step_timer import PARTS

from tests.test_fast_model import SHAPE, SIZES, fields, needs_compiler

SMALL = [
    "--data.dataset=OceanDataset",
    "--data.dataset.train_stride=[3,2,20]",
    "--data.batch_size=8",
    "--model.embed_dim=16",
    "--model.decoder_embed_dim=16",
    "--model.depth=1",
    "--device=cpu",
]
TWO_RUNGS = """
rungs:
  - {name: first, set: {data.batch_size: 8}}
  - {name: second, set: {model.width: 5}}
variants:
  - {name: half, set: {data.batch_size: 4}}
"""


def climb(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["step_ladder.py", *arguments])
    return step_ladder.main()


@pytest.mark.slow
@needs_compiler
def test_no_rung_changes_a_loss(monkeypatch, tmp_path, capsys):
    """Over 50 steps, the compiler's as well: below 1e-4, and the first ones are no constants.

    The compiler makes graphs and no kernels, which take long: test_fast_model.py has those.
    """
    if not os.environ.get("FULL_MATRIX"):
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    ladder = yaml.safe_load((CHAPTER / "ladder.yaml").read_text())
    place = tmp_path / "rungs.yaml"
    place.write_text(yaml.safe_dump(ladder | {"variants": []}))
    words = ["--steps=50", "--warmup=1", "--repeats=1", f"--save-dir={tmp_path / 'results'}"]
    words.append(f"--ladder={place}")
    seen = []
    measure = step_ladder.measure
    monkeypatch.setattr(
        step_ladder, "measure", lambda *given: seen.append(measure(*given)) or seen[-1]
    )
    assert climb(monkeypatch, *SMALL, *words) == 0
    rows = json.loads((tmp_path / "results" / "ladder.json").read_text())["rows"]
    assert len(rows) == 8
    assert all(row["loss_differs"] < 1e-4 for row in rows)
    losses = seen[0]["losses"]
    assert len(losses) == 51
    assert losses[-1] < 0.9 * losses[0]
    assert [row["graphs"] for row in rows] == [0] * 7 + [1]
    assert (tmp_path / "results" / "ladder.png").read_bytes().startswith(b"\x89PNG")
    assert "first version" in capsys.readouterr().out


def test_slow_forms_compute_the_same():
    torch.manual_seed(0)
    attention, x = Attention(16, 2), torch.randn(3, 5, 16)
    attend = torch.rand(3, 5) > 0.3
    attend[:, 0] = True
    explicit = ExplicitAttention(16, 2)
    explicit.load_state_dict(attention.state_dict())
    for mask in (None, attend):
        torch.testing.assert_close(explicit(x, mask), attention(x, mask))
    slow, fast = OneByOne(SHAPE, **SIZES), MaskedAutoencoder(SHAPE, **SIZES)
    valid, index = fields(6)[:, 0, 0] > 0, torch.arange(6)
    valid = valid.flatten(1)[:, :8]
    for one, other in zip(slow.hide(valid, index, 3), fast.hide(valid, index, 3), strict=True):
        assert one.equal(other)
    expected = random_mask(valid, index, 0, 3, 0.75)
    assert fast.hide(valid, index, 3).hidden.equal(expected.hidden)


def run_of(rung: str, step: float, batch_size: int = 8, losses=(2.0, 1.0)) -> dict:
    parts = dict.fromkeys(PARTS, step / len(PARTS))
    return {
        "rung": rung,
        "losses": list(losses),
        "first_step": 1.0,
        "step": step,
        "parts": parts,
        "batch_size": batch_size,
        "graphs": 0,
        "peak_memory": None,
    }


def test_ratios_are_those_within_a_turn():
    """The machine was twice as slow in the second turn, and it does not matter."""
    rungs = [Rung("a", {}, False), Rung("b", {}, False), Rung("c", {}, True)]
    runs = [run_of("a", 0.04), run_of("b", 0.02, losses=(2.0, 1.001)), run_of("c", 0.04, 16)]
    runs += [run_of("a", 0.08), run_of("b", 0.04), run_of("c", 0.08, 16)]
    a, b, c = summarise(rungs, runs)
    assert (a["faster"], b["faster"], c["faster"]) == (1.0, 2.0, 2.0)
    assert a["loss_differs"] == 0
    assert b["loss_differs"] == pytest.approx(1e-3)
    assert c["loss_differs"] is None  # other batches
    assert b["step_ms"] == 30
    lines = table([a, b, c]).splitlines()
    assert "1.00x     same" in lines[1]
    assert "2.00x    1e-03" in lines[2]
    assert lines[3] == "on top of it, each by itself"
    assert "2.00x    other" in lines[4]


@pytest.mark.slow
def test_ladder_of_an_own_module(monkeypatch, tmp_path, capsys):
    place = tmp_path / "mine.yaml"
    place.write_text(TWO_RUNGS)
    (tmp_path / "config.yaml").write_text("data: {number: 320}\n")
    classes = ["--model-class=tests.own_training.Line", "--data-class=tests.own_training.Points"]
    words = [f"--ladder={place}", f"--config={tmp_path / 'config.yaml'}", "--device=cpu"]
    words += ["--steps=6", "--warmup=2", "--repeats=2", f"--save-dir={tmp_path / 'results'}"]
    assert climb(monkeypatch, *classes, *words) == 0
    rows = json.loads((tmp_path / "results" / "ladder.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["first", "second", "half"]
    assert rows[1]["settings"] == {"data.batch_size": 8, "model.width": 5}
    assert rows[2]["settings"]["data.batch_size"] == 4
    assert rows[1]["loss_differs"] > 0  # this one does change the losses, and it is told
    assert "half" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rungs: []", "has no list of rungs"),
        ("- a", "has no list of rungs"),
        ("rung: [{name: a, set: {}}]\nrungs: [{name: a, set: {}}]", "has a key rung; allowed: "),
        ("rungs: [{name: a}]", r"each rung has a name, and set: with its settings \('set'\)"),
        ("rungs: [a]", "each rung has a name"),
        ("rungs: [", "each rung has a name"),
    ],
)
def test_bad_ladder_is_one_line(tmp_path, monkeypatch, text, message):
    place = tmp_path / "bad.yaml"
    place.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        climb(monkeypatch, f"--ladder={place}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ladder=absent.yaml"], "--ladder: cannot read absent.yaml: No such file"),
        (["--steps=0"], "--steps, --repeats, --epochs, --warmup: allowed"),
        (["--save-dir=/"], "--save-dir: / is in use; allowed: a new or an empty folder"),
        (["--devices=2"], "--devices: the ladder is measured in one process"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, arguments, message):
    with pytest.raises(UserError, match=message):
        climb(monkeypatch, *arguments)


def test_command_line_goes_before_the_file():
    class Chosen:
        ladder, config, model_class, data_class = "ladder.yaml", "mine.yaml", None, None

    rungs = read_ladder(Chosen)
    assert (Chosen.config, Chosen.model_class) == ("mine.yaml", "slow_module.SlowModule")
    assert Chosen.data_class == "src.data.lightning_datamodule.FieldDataModule"
    assert rungs[-1].variant
    assert rungs[0].settings["model.attention"] == "explicit"
    assert rungs[-1].settings["model.attention"] == "fused"
