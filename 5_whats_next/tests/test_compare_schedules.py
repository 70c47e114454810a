"""The comparison of schedules: verdicts for numbers that are known, and the rule for restarts."""

import sys

import compare_schedules
import pytest
import restart_recovery
import short_training
from restart_recovery import report, restarts
from schedule_report import Run, interval, steps_until, table, verdict
from src.errors import UserError

from tests.lightning_runs import train_lightning
from tests.runs import TINY
from tests.test_compare_precision import OWN
from tests.test_schedules import TWO_CYCLES


def run(monkeypatch, tmp_path, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["compare_schedules.py", *OWN, *arguments])
    monkeypatch.setattr(short_training, "CHAPTER", tmp_path)
    return compare_schedules.main()


def made_up(constant: list[float], with_restarts: list[float]) -> list[Run]:
    """Three seeds whose last RMSE with the cosine is 1.0, 1.1 and 1.2."""
    last = {
        "cosine": [1.0, 1.1, 1.2],
        "constant": constant,
        "cosine_restarts": with_restarts,
    }
    return [
        Run(name, seed, [1.0] * 8, [0.1] * 8, [(4, 2.0), (8, rmse)])
        for name, scores in last.items()
        for seed, rmse in enumerate(scores)
    ]


def test_verdict_is_about_the_spread():
    """Pairs of the same seed: what the seeds differ in themselves is no difference."""
    runs = made_up([1.21, 1.29, 1.4], [1.1, 1.0, 1.2])
    gap, half = interval(runs, "constant")
    assert gap == pytest.approx(0.2)
    assert half == pytest.approx(0.0248, abs=1e-4)  # t(0.975, 2) 4.303, spread 0.01 / sqrt(3)
    told = verdict(runs).splitlines()
    assert told[0] == "constant: 18.2% worse than cosine"
    assert told[1] == "cosine_restarts: no difference from cosine that these seeds could show"
    assert "better" in verdict(made_up([0.81, 0.89, 1.0], [1.1, 1.0, 1.2]))
    assert "1.1000 ± 0.1000" in table(runs, 4)


def test_steps_until_it_stays_there():
    def validated(*scores: float) -> Run:
        measured = [(2 * i + 2, score) for i, score in enumerate(scores)]
        return Run("cosine_restarts", 0, [1.0] * 8, [0.1] * 8, measured)

    cosine = Run("cosine", 0, [1.0] * 8, [0.1] * 8, [(2, 3.0), (4, 2.0), (6, 1.05), (8, 1.0)])
    assert steps_until([cosine], "cosine") == [6]
    # It was there at step 2, and a restart took it away again.
    assert steps_until([cosine, validated(1.0, 1.5, 1.0, 1.0)], "cosine_restarts") == [6]
    assert steps_until([cosine, validated(1.0, 1.5, 1.0, 1.5)], "cosine_restarts") == []


def jumping(back: int) -> tuple[list[int], list[float], list[float]]:
    """Twenty steps, then a restart whose loss is back after ``back`` of twenty steps."""
    rates = 2 * [1.0 - i / 20 for i in range(20)]
    rates = [0.5, *rates]  # a warmup
    losses = 21 * [1.0] + [2.0 if i < back else 0.9 for i in range(20)]
    return list(range(1, 42)), losses, rates


@pytest.mark.parametrize(("window", "expected"), [(1, 7), (3, 9)])
def test_epochs_until_the_loss_is_back(window, expected):
    """The mean of some rows is back when all of them are."""
    (found,) = restarts(*jumping(6), window)
    assert (found.step, found.before, found.highest) == (22, 1.0, 2.0)
    assert found.recovered == expected
    told = report([found], per_epoch=10, total_steps=100)
    assert f"{expected / 10:.2f}" in told
    assert f"a period of {expected / 5:.2f} to {3 * expected / 10:.2f} epochs" in told


def test_cycle_that_is_too_short_for_the_rule():
    (found,) = restarts(*jumping(20), 1)
    assert found.recovered is None
    assert "too short for the loss to come back" in report([found], 10, 41)
    (found,) = restarts(*jumping(15), 1)
    assert "no room for two such cycles" in report([found], per_epoch=10, total_steps=41)


def test_schedules_without_a_restart():
    steps = list(range(1, 21))
    falling = [1.0 - i / 20 for i in range(20)]
    assert restarts(steps, 20 * [1.0], falling, 3) == []
    assert restarts(steps, 20 * [1.0], [i / 20 for i in range(20)], 3) == []


def test_recovery_of_a_run(monkeypatch, tmp_path, capsys):
    assert train_lightning(monkeypatch, tmp_path, *TWO_CYCLES) == 0
    folder = tmp_path / "run_1"
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["restart_recovery.py", str(folder), "--window=1"])
    assert restart_recovery.main() == 0
    assert "\n             1.75" in capsys.readouterr().out  # after 7 steps, of 4 in an epoch


def test_files_without_an_answer(monkeypatch, tmp_path):
    assert train_lightning(monkeypatch, tmp_path, *TINY[-1:]) == 0
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    for place, message in (
        (tmp_path / "run_1", "no restart in it; allowed: a run with cosine_restarts"),
        (tmp_path / "none", "there is no such file"),
        (other, "not the metrics of a run"),
    ):
        monkeypatch.setattr(sys, "argv", ["restart_recovery.py", str(place)])
        with pytest.raises(UserError, match=message) as error:
            restart_recovery.main()
        assert "\n" not in str(error.value)


def test_command(monkeypatch, tmp_path, capsys):
    words = ["--epochs=4", "--cycles=2", "--seeds=2", "--validations=4"]
    words += ["--optimizer.min_lr_fraction=0.1", "--seed_everything=3"]
    assert run(monkeypatch, tmp_path, *words) == 0
    printed = capsys.readouterr().out
    assert "16 steps (4 epochs), 8 samples each; 2 seeds of 3 schedules" in printed
    assert "\nconstant: " in printed
    assert "\ncosine_restarts: " in printed
    folder = tmp_path / "output" / "schedule" / "run_1"
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = (folder / "curves.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3 * 16
    # The same seed begins with the same weights and samples, and so with the same loss.
    first = [line.split(",")[4] for line in lines if line.split(",")[2] == "1"]
    assert first[0] == first[1] == first[2] != first[3]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--seeds=1", r"--seeds: 1 has no spread; allowed: 2 and more"),
        ("--cycles=1", r"optimizer.cycles: 1 .*allowed: 2 and more"),
        ("--cycles=30", r"optimizer.cycles: 30 cycles .* do not fit"),
        ("--validations=100", r"--validations: 100 in 8 steps; allowed: 1 to 8"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, tmp_path, argument, message):
    with pytest.raises(UserError, match=message):
        run(monkeypatch, tmp_path, argument)
    assert not list(tmp_path.iterdir())
