"""The study: how it goes on, what it leaves, and that its winner can be trained."""

import signal
import subprocess
import sys

import optuna
import pytest
import study
import yaml
from src.config import CHAPTER
from src.interrupt import GracefulInterrupt
from src.lightning_settings import quiet
from src.study_report import Result, pooled_spread
from src.study_run import Study
from src.study_space import read_settings
from src.study_trial import Training, Watch, read_config, train

from tests.lightning_runs import call_lightning
from tests.study_runs import call, rows, whole_study, write_config


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path)


@pytest.fixture
def whole(tmp_path_factory):
    """The folder of a study that nothing has disturbed; the tests only read it."""
    return whole_study(tmp_path_factory.getbasetemp() / "study")


@pytest.mark.slow(copies=True)
def test_finished_study_only_shows(whole, monkeypatch, capsys):
    """The table, the verdict, and the winner's config."""
    monkeypatch.setattr("src.study_run.train", None)  # nothing is trained any more
    assert call(monkeypatch, whole.parent / "tiny.yaml", "whole") == 0
    printed = capsys.readouterr().out
    assert "It cannot tell" in printed
    found = rows(whole)
    assert sorted(int(row["trial"]) for row in found) == list(range(1, 7))
    assert len({row["optimizer.lr"] for row in found}) == 6
    means = [float(row["rmse_spreads"]) for row in found if not row["ended"]]
    assert means == sorted(means)
    assert f"best      trial {found[0]['trial']}: {means[0]:.4f}" in printed
    pruned = [row for row in found if row["ended"] == "pruned"]
    assert pruned
    assert all(row["seeds"] == "1" for row in pruned)  # the first seed decides
    assert f"{len(means)} complete, {len(pruned)} pruned" in printed
    assert all((whole / name).is_file() for name in ("curves.png", "slices.png"))
    # The winner's values, and none of the shortcuts of the study.
    best = yaml.safe_load((whole / "best.yaml").read_text())
    assert best["optimizer"]["lr"] == float(found[0]["optimizer.lr"])
    assert str(best["model"]["patch_size"]) == found[0]["model.patch_size"]
    assert best["model"]["embed_dim"] == 64
    assert best["data"]["dataset"]["class_path"].endswith("FastDataset")


class Rates(Watch):
    """Also notes the learning rate that the training ends with."""

    def on_train_end(self, trainer, pl_module):
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]


@pytest.mark.parametrize("size", [8, 16])
def test_same_budget_for_all_batch_sizes(config, size):
    """As many samples, evaluations as far apart, and the whole schedule: of 1.6 epochs."""
    quiet()
    settings = read_settings(config, {})
    one = Study(config.parent / "one", settings, [f"--data.batch_size={size}"])
    trial = read_config([*one.shared, f"--data.batch_size={size}"], {"model.patch_size": "[2,4,4]"})
    training, steps, seen = Training(), list[int](), list[int]()
    watch = Rates(training, lambda: seen.append(sum(steps)), steps.append, GracefulInterrupt())
    train(trial, one.datasets, one.task, settings, 1, watch)
    assert steps == [size] * (64 // size)
    assert seen == [16, 32, 48, 64]
    assert len(training.curve) == 4
    assert watch.rate == pytest.approx(0, abs=1e-12)


class Stop(Exception):  # noqa: N818
    """Stands for whatever ends the process."""


@pytest.mark.slow(copies=True)
def test_interrupted_study_ends_with_the_same_trials(config, whole, monkeypatch, capsys):
    """Stopped inside each of its first trials, and prolonged at the end."""
    real, calls = study.Study.try_one, []

    def dies(self, slot, bar):
        """Each trial is begun, loses its process after an evaluation, and begins again."""
        with pytest.MonkeyPatch.context() as inner:
            if slot not in calls:
                calls.append(slot)
                inner.setattr("optuna.Trial.should_prune", kill)
            return real(self, slot, bar)

    def kill(trial):
        raise Stop

    monkeypatch.setattr(Study, "try_one", dies)
    for _ in range(4):
        with pytest.raises(Stop):
            call(monkeypatch, config, "parts", "--trials=4")
    assert call(monkeypatch, config, "parts", "--trials=4") == 0
    assert "; 4 interrupted" in capsys.readouterr().out
    monkeypatch.setattr(Study, "try_one", real)
    assert call(monkeypatch, config, "parts") == 0
    assert rows(config.parent / "parts") == rows(whole)


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_after_the_step(config, whole, monkeypatch, capsys, number):
    """Ctrl-C in a training of the third trial: the command to go on, and later the same trials."""
    report = optuna.Trial.report

    def told(self, value, step):
        report(self, value, step)
        if self.number == 2:
            signal.raise_signal(number)

    monkeypatch.setattr("optuna.Trial.report", told)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    assert call(monkeypatch, config, "parts") == 128 + number
    assert handlers == [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    assert "stopped after 2 of 6 trials; to go on:" in capsys.readouterr().out
    monkeypatch.setattr("optuna.Trial.report", report)
    assert call(monkeypatch, config, "parts") == 0
    assert rows(config.parent / "parts") == rows(whole)


@pytest.mark.slow
def test_killed_process(config, whole, monkeypatch):
    """The same command ends with the trials of an undisturbed study."""
    words = [f"-c={config}", "--name=killed", f"--output-dir={config.parent}"]
    process = subprocess.Popen(
        [sys.executable, "study.py", *words], cwd=CHAPTER, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "trial 1:" in process.stdout.readline()  # so the second one has begun, or is about to
    process.kill()
    process.communicate()
    assert call(monkeypatch, config, "killed") == 0
    assert rows(config.parent / "killed") == rows(whole)


def test_diverged_trial_is_a_result(config, monkeypatch, capsys):
    """Not the end of the study, nor its winner."""
    words = ["--space=optimizer.lr=[1e-3, 1e30]", "--trials=4", "--seeds=1"]
    assert call(monkeypatch, config, "one", *words) == 0
    printed = capsys.readouterr().out
    found = rows(config.parent / "one")
    ended = {row["optimizer.lr"]: row["ended"] for row in found}
    assert ended["1e+30"] == "diverged"
    assert found[0]["optimizer.lr"] == "0.001"
    assert "with one seed nothing tells luck from settings" in printed


def test_spread_is_pooled_over_the_trials():
    def result(*scores: float) -> Result:
        return Result(1, {}, "", [[score] for score in scores], 0.0, 0.0)

    # Variances 0.02 and 0.08, by hand.
    assert pooled_spread([result(1.0, 1.2), result(2.0, 2.4)]) == pytest.approx(0.05**0.5)


def test_winner_can_be_trained(whole, monkeypatch, tmp_path):
    """On small data, in place of the ocean that best.yaml names."""
    arguments = [f"-c={whole / 'best.yaml'}", "--data.dataset=DummyDataset"]
    arguments += ["--data.dataset.sample_shape=[2,4,8,8]", "--data.dataset.num_samples=32"]
    arguments += ["--trainer.max_epochs=1", f"--trainer.output_dir={tmp_path}"]
    arguments += ["--trainer.log_every_n_steps=1"]
    assert call_lightning(monkeypatch, *arguments, "--trainer.accelerator=cpu") == 0
    used = yaml.safe_load((tmp_path / "run_1" / "config.yaml").read_text())
    best = yaml.safe_load((whole / "best.yaml").read_text())
    assert used["optimizer"] == best["optimizer"]
    assert used["model"] == best["model"]
