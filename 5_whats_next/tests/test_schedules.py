"""Learning rates: what each schedule does, against PyTorch's own, and across a resume."""

import math

import pytest
import torch
from src.errors import UserError
from src.optim import make_optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from tests.lightning_runs import (
    assert_same_lightning_run,
    call_cli,
    call_lightning,
    step_of,
    train_lightning,
)
from tests.runs import rows, train

RESTARTS = ["--optimizer.schedule=cosine_restarts", "--optimizer.warmup_fraction=0.17"]
# Twelve steps: a warmup of two, then cycles of five steps.
TWO_CYCLES = [*RESTARTS, "--optimizer.cycles=2", "--optimizer.min_lr_fraction=0.1"]


def rates(total_steps: int, **settings) -> list[float]:
    """The learning rate of each step, with a peak of 1."""
    optimizer, scheduler = make_optimizer(torch.nn.Linear(2, 2), total_steps, lr=1.0, **settings)
    found = []
    for _ in range(total_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_cosine_is_the_one_of_the_chapters_before():
    """To the bit: a run of theirs goes on here."""
    warmup, total = 6, 40

    def before(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = (step - warmup) / max(1, total - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    assert rates(total, warmup_fraction=0.15) == [before(step) for step in range(total)]


def test_constant_stays_at_the_peak():
    assert rates(10, warmup_fraction=0.2, schedule="constant") == [1 / 3, 2 / 3] + 8 * [1.0]


@pytest.mark.parametrize(
    ("factor", "cycles", "steps", "first"), [(1, 3, 24, 8), (2, 3, 28, 4), (3, 2, 24, 6)]
)
@pytest.mark.parametrize("low", [0.0, 0.1])
def test_restarts_are_pytorchs(factor, cycles, steps, first, low):
    """Behind the warmup, CosineAnnealingWarmRestarts with the first cycle's length as T_0."""
    settings = {"cycles": cycles, "cycle_factor": factor, "min_lr_fraction": low}
    total = steps + 5
    ours = rates(total, schedule="cosine_restarts", warmup_fraction=5 / total, **settings)
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = CosineAnnealingWarmRestarts(theirs, T_0=first, T_mult=factor, eta_min=low)
    for rate in ours[5:]:
        assert rate == pytest.approx(theirs.param_groups[0]["lr"], abs=1e-12)
        theirs.step()
        schedule.step()
    assert ours[:5] == pytest.approx([step / 6 for step in range(1, 6)])
    # PyTorch would be at the peak again: the last cycle ends exactly with the training.
    assert theirs.param_groups[0]["lr"] == 1.0


def test_cycles_that_do_not_divide_the_steps():
    """Each differs by a step at most, and none is lost."""
    found = rates(20, schedule="cosine_restarts", warmup_fraction=0.0, cycles=3)
    assert [step for step, rate in enumerate(found) if rate == 1.0] == [0, 7, 13]
    assert found[6] > 0 < found[12]


BAD = {
    "no restart": (["schedule=cosine_restarts"], r"optimizer.cycles: 1 .*allowed: 2 and more"),
    "cycles of a cosine": (["cycles=2"], r"optimizer.cycles: 2 .*cosine; allowed: 1, or"),
    "factor of a cosine": (["cycle_factor=2"], r"optimizer.cycle_factor: 2 .*allowed: 1, or"),
    "shrinking cycles": (
        ["schedule=cosine_restarts", "cycles=2", "cycle_factor=0"],
        r"optimizer.cycle_factor: 0 .*allowed: 1 and more",
    ),
    "too many": (
        ["schedule=cosine_restarts", "cycles=9"],
        r"optimizer.cycles: 9 cycles .*11 steps after the warmup: the shortest has 1",
    ),
    "minimum": (["min_lr_fraction=1.0"], r"optimizer.min_lr_fraction: 1.0 .*allowed: 0 up to 1"),
    "minimum of a constant": (
        ["schedule=constant", "min_lr_fraction=0.1"],
        r"optimizer.min_lr_fraction: 0.1 .*allowed: 0 with schedule constant",
    ),
    "schedule": (["schedule=step"], "schedule.*cosine_restarts.*step"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_schedule_is_one_line(monkeypatch, tmp_path, name):
    words, message = BAD[name]
    arguments = [f"--optimizer.{word}" for word in words]
    with pytest.raises(UserError, match=message) as error:
        train_lightning(monkeypatch, tmp_path, *arguments)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("run_*"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run with a restart after step 7."""
    output = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert train_lightning(monkeypatch, output, *TWO_CYCLES) == 0
    return output / "run_1"


def test_restart_is_in_the_run(reference):
    found = [float(row["lr"]) / 4e-3 for row in rows(reference) if row["train_loss"]]
    cycle = [0.1 + 0.45 * (1 + math.cos(math.pi * step / 5)) for step in range(5)]
    assert found == pytest.approx([1 / 3, 2 / 3, *cycle, *cycle], rel=1e-6)


# In the warmup, at its end, just before the restart, at it, after it.
@pytest.mark.parametrize("step", [1, 2, 6, 7, 8])
def test_resumed_run_is_the_same_to_the_bit(monkeypatch, tmp_path, reference, step):
    words = [*TWO_CYCLES, f"--trainer.max_steps={step}"]
    assert train_lightning(monkeypatch, tmp_path, *words) == 0
    folder = tmp_path / "run_1"
    assert step_of(folder) == step
    resume = [f"--resume={folder}", "--trainer.max_steps=-1"]
    assert call_lightning(monkeypatch, *resume) == 0
    assert_same_lightning_run(reference, folder)


def test_command_line_and_raw_pytorch_have_it_too(monkeypatch, tmp_path, reference):
    """Chapter 0's script with the same keys; LightningCLI reads them."""
    assert train(monkeypatch, tmp_path, *TWO_CYCLES) == 0
    ours = [row["train_loss"] for row in rows(tmp_path / "run_1")]
    assert ours == [row["train_loss"] for row in rows(reference)]
    with pytest.raises(UserError, match=r"optimizer.cycles: 1 does not fit"):
        call_cli(
            monkeypatch,
            "fit",
            RESTARTS[0],
            "--data.dataset=DummyDataset",
            "--trainer.accelerator=cpu",
            f"--trainer.logger.init_args.output_dir={tmp_path / 'cli'}",
        )


def test_another_schedule_is_no_continuation(monkeypatch, tmp_path):
    words = [*TWO_CYCLES, "--trainer.max_steps=2"]
    assert train_lightning(monkeypatch, tmp_path, *words) == 0
    changed = ["--optimizer.schedule=cosine", "--optimizer.cycles=1"]
    with pytest.raises(UserError, match=r"model.optimizer.cycles is 2 in the checkpoint, but 1"):
        call_lightning(monkeypatch, f"--resume={tmp_path / 'run_1'}", *changed)


@pytest.mark.slow(copies=True)
def test_checkpoints_from_before_the_setting_load(monkeypatch, tmp_path):
    """They were trained with the cosine and in float32, which are still the defaults."""
    for name in ("whole", "parts"):
        steps = -1 if name == "whole" else 5
        words = [f"--trainer.output_dir={tmp_path / name}", f"--trainer.max_steps={steps}"]
        assert train_lightning(monkeypatch, tmp_path, *words) == 0
    place = tmp_path / "parts" / "run_1" / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(place, weights_only=True)
    fingerprint = checkpoint["fingerprint"]
    for key in ("schedule", "cycles", "cycle_factor", "min_lr_fraction"):
        del fingerprint["model"]["optimizer"][key]
    del fingerprint["trainer"]["precision"]
    torch.save(checkpoint, place)
    (place.parent / "manifest.json").unlink()  # which they do not have
    resume = [f"--resume={tmp_path / 'parts' / 'run_1'}", "--trainer.max_steps=-1"]
    with pytest.raises(UserError, match=r"trainer.precision is None .* but bf16-mixed"):
        call_lightning(monkeypatch, *resume, "--trainer.precision=bf16-mixed")
    assert call_lightning(monkeypatch, *resume) == 0
    assert_same_lightning_run(tmp_path / "whole" / "run_1", tmp_path / "parts" / "run_1")
