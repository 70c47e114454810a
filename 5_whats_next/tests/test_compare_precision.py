"""The comparison of precisions: the same training as Lightning's, and a verdict that can fail."""

import compare_precision
import gradient_range
import numpy as np
import pytest
import short_training
import torch
from precision_report import Result, difference, table, verdict
from short_training import ShortTraining, batches
from src.data.loaders import make_loaders
from src.errors import UserError

from tests.lightning_runs import train_lightning
from tests.runs import TINY, rows

OWN = [word for word in TINY if not word.startswith(("--trainer.max", "--trainer.log"))]


def run(monkeypatch, tmp_path, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["compare_precision.py", *OWN, *arguments])
    monkeypatch.setattr(short_training, "CHAPTER", tmp_path)
    return compare_precision.main()


def new_training(steps: int = 12, **settings) -> ShortTraining:
    _, config = short_training.parse(short_training.options(""), OWN)
    loaders = make_loaders(**vars(config.data), seed=0)
    return ShortTraining(config, loaders, torch.device("cpu"), steps, **settings)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_is_lightnings_to_the_bit(monkeypatch, tmp_path, precision):
    """What is compared is what runs."""
    assert train_lightning(monkeypatch, tmp_path, f"--trainer.precision={precision}") == 0
    found = rows(tmp_path / "run_1")
    training = new_training(precision=precision)
    source = batches(training.loaders, training.device)
    for _ in range(12):
        training.step(*next(source))
    lightnings = [np.float32(row["train_loss"]) for row in found if row["train_loss"]]
    assert lightnings == [np.float32(loss) for loss in training.curve()]
    rates = [np.float32(row["lr"]) for row in found if row["train_loss"]]
    assert rates == [np.float32(rate) for rate in training.rates]
    last = [float(row["rmse_noise_0"]) for row in found if row["val_loss"]][-1]
    assert last == pytest.approx(training.rmse(), rel=1e-6)


@pytest.fixture(scope="module")
def surveyed():
    torch.manual_seed(0)
    training = new_training()
    before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
    x, index, _ = next(batches(training.loaders, training.device))
    found = {(row.loss, row.way): row for row in gradient_range.survey(training, x, index)}
    assert all(p.equal(before[name]) for name, p in training.model.named_parameters())
    return found


def test_small_gradients(surveyed):
    """float16 makes many of them zero; the scaler brings them back, bfloat16 never lost them."""
    loss = "mean, 10,000 times the batch"
    assert surveyed[loss, "float16"].lost > 0.01
    assert surveyed[loss, "float16 + GradScaler"].lost < 0.01
    assert surveyed[loss, "bfloat16"].lost < 0.01
    assert all(row.infinite == 0 for (name, _), row in surveyed.items() if name == loss)


def test_large_gradients(surveyed):
    """float16 makes some of them infinite; the scaler leaves steps out until they fit."""
    loss = "sum, 1,000 times the batch"
    assert surveyed[loss, "float16"].infinite > 0
    scaled = surveyed[loss, "float16 + GradScaler"]
    assert (scaled.infinite, surveyed[loss, "bfloat16"].infinite) == (0, 0)
    assert scaled.left_out > 0
    assert scaled.scale == 2.0 ** (16 - scaled.left_out)
    assert scaled.largest == pytest.approx(surveyed[loss, "float32"].largest, rel=0.01)
    told = gradient_range.table(list(surveyed.values()))
    assert len(told.splitlines()) == 1 + 3 * 4


def result(precision: str, losses: np.ndarray, rmse: float = 1.0) -> Result:
    return Result(precision, 10.0, 1.0, 5.0, losses, rmse, 0)


def test_verdict_depends_on_the_last_quarter():
    """In the beginning, where the loss falls fast, small differences look large."""
    reference = result("32-true", np.ones(80))
    early, late = np.ones(80), np.ones(80)
    early[:60] = 2.0
    late[60:] = 1.2
    assert difference(result("bf16-mixed", early), reference) == 0
    assert difference(result("bf16-mixed", late), reference) == pytest.approx(0.2)
    near = result("32-true, rounded", np.ones(80), 1.001)

    def told(result: Result, rounded: Result = near) -> str:
        return verdict(result, reference, rounded, 0.05, 0.02)

    within = told(result("bf16-mixed", early))
    assert "bf16-mixed: within the tolerance: losses 0.00% of 5.0%" in within
    assert "OUTSIDE" in told(result("bf16-mixed", late))
    assert "OUTSIDE" in told(result("bf16-mixed", early, 1.03))
    broken = np.full(80, np.nan)  # never within anything
    assert "OUTSIDE" in told(result("16-mixed", broken))
    # A training that is as sensitive in float32 tells nothing about the precision.
    far = result("32-true, rounded", 0.5 * late, 1.05)
    assert "no further than float32 from itself" in told(result("bf16-mixed", late), far)
    assert "OUTSIDE" in told(result("16-mixed", broken), far)
    assert len(table([reference, result("bf16-mixed", late)], "kept").splitlines()) == 3


def test_command(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, tmp_path, "--rounds=3", "--steps=4", "--emulate") == 0
    printed = capsys.readouterr().out
    assert "emulated" in printed
    for name in ("bf16-mixed", "16-mixed"):
        assert f"\n{name}: within the tolerance" in printed
    folder = tmp_path / "output" / "precision" / "run_1"
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = (folder / "losses.csv").read_text().splitlines()
    assert lines[0] == 'step,32-true,"32-true, rounded",bf16-mixed,16-mixed'
    assert len(lines) == 1 + 12
    assert sorted(path.name for path in folder.iterdir()) == ["curves.png", "losses.csv"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--rounds=0", r"--rounds: 0 is too small; allowed: above 0"),
        ("--tolerance=-1", r"--tolerance: -1.0 is too small; allowed: above 0"),
        ("--steps=many", r"--steps: invalid int value: 'many'"),
        ("--round=3", r"--round is no option; allowed: .*--rounds"),
        ("--model.dept=3", r"model.dept"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, tmp_path, argument, message):
    with pytest.raises(UserError, match=message) as error:
        run(monkeypatch, tmp_path, argument)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
