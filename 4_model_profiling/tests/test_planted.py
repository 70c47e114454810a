"""The exercises: each variant is slow in one part, and the check tells a repair from none."""

import sys

import check_planted
import pytest
from src.errors import UserError

PLAIN_MODULE = "src.model.lightning_module.AutoencoderModule"
PLAIN_DATA = "src.data.pytorch_dataset.OceanDataset"
ANSWERS = [
    ("A", "forward", PLAIN_MODULE),
    ("B", "optimizer", PLAIN_MODULE),
    ("C", "data", PLAIN_DATA),
]


def check(monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["check_planted.py", *words])
    return check_planted.main()


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "part", "repaired"), ANSWERS)
def test_answer_and_repair(monkeypatch, capsys, variant, part, repaired):
    """The plain class is a repair, and it is compared with itself; the limit leaves room.

    The check takes medians: of three turns, one may meet another program that computes.
    """
    monkeypatch.setattr(check_planted, "LIMIT", 3.0)
    few = ["--steps=5", "--turns=3"]
    assert check(monkeypatch, variant, f"--part={part}", f"--repaired={repaired}", *few) == 0
    printed = capsys.readouterr().out
    assert f"right: {part} takes " in printed
    assert "repaired: as fast as without" in printed


def of(name: str, step: float, slow: str = "", loss: float = 1.0) -> dict:
    parts = {part: step / 6 + (part == slow) for part in check_planted.PARTS}
    return {"rung": name, "step": step, "parts": parts, "losses": [loss, loss]}


@pytest.mark.parametrize(
    ("repaired", "message", "passed"),
    [
        (of("r", 1.1), "repaired: ", True),
        (of("r", 1.3), "not yet: 1.30 times", False),
        (of("r", 0.9, loss=1.01), "no: the losses differ by 1e-02", False),
    ],
)
def test_a_repair_is_fast_and_the_same(capsys, repaired, message, passed):
    assert check_planted.check_repair([{"plain": of("p", 1.0), "repaired": repaired}]) is passed
    assert capsys.readouterr().out.startswith(message)


def test_another_part_is_no_answer(capsys):
    turn = {"plain": of("p", 1.0), "planted": of("q", 1.0, slow="data")}
    assert check_planted.check_part("data", [turn])
    assert not check_planted.check_part("forward", [turn])
    assert capsys.readouterr().out.count("no: forward is not what has grown most") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["D", "--part=data"], "argument variant: invalid choice: 'D'"),
        (["--part=data"], "nothing to check; allowed: A, B or C, with"),
        (["A"], "nothing to check; allowed: A, B or C, with"),
        (["A", "--part=weather"], "argument --part: invalid choice: 'weather'"),
        (["A", "--repaired=nowhere.A"], "--repaired: cannot import nowhere.A"),
        (["A", f"--repaired={PLAIN_DATA}"], "OceanDataset is no AutoencoderModule"),
        (["C", f"--repaired={PLAIN_MODULE}"], "AutoencoderModule is no FieldDataset"),
        (["A", "--part=data", "--turns=0"], "--steps, --turns: allowed: from 1"),
        (["A", "--parts=data"], "--parts=data is no option"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, words, message):
    with pytest.raises(UserError, match=message) as caught:
        check(monkeypatch, *words)
    assert "\n" not in str(caught.value)
