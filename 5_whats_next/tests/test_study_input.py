"""What a study refuses: one clear line, and nothing is written."""

import subprocess
import sys

import pytest
import yaml
from src.config import CHAPTER
from src.errors import UserError
from src.study_run import Study
from src.study_space import read_settings

from tests.study_runs import TINY, call, rows, write_config


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path)


def test_two_processes_do_not_share_a_study(config, monkeypatch):
    settings = read_settings(config, {})
    with (
        Study(config.parent / "one", settings, []),
        pytest.raises(UserError, match="one is running in another process"),
    ):
        call(monkeypatch, config, "one")


@pytest.mark.slow(copies=True)
def test_other_settings_need_another_name(config, monkeypatch):
    settings = read_settings(config, {"trials": 1})
    with Study(config.parent / "one", settings, []):
        pass
    with pytest.raises(UserError, match="seeds: the study one was begun with 2, here it is 3"):
        call(monkeypatch, config, "one", "--seeds=3")
    assert call(monkeypatch, config, "one", "--new", "--seeds=1", "--trials=1") == 0
    assert [row["seeds"] for row in rows(config.parent / "one")] == ["1"]
    with pytest.raises(UserError, match="command line: the study one was begun with"):
        call(monkeypatch, config, "one", "--seeds=1", "--model.depth=1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples=66"], "evaluations: 4 do not divide 66 samples"),
        (["--samples=32"], "data.batch_size: 16 does not divide the 8 samples"),
        (["--trials=0"], "trials: 0; allowed: whole numbers from 1"),
        (["--name=a/b"], "--name: 'a/b' is no name"),
        (["--config=absent.yaml"], "--config: cannot read absent.yaml"),
        (["--space=lr=[1]"], "space: lr is no key of config/config.yaml"),
        (["--space=optimizer.lr"], "--space: optimizer.lr; allowed: KEY=VALUES"),
        (["--space=optimizer.lr={low: 1}"], "space: optimizer.lr: .* allowed: a list, or a range"),
        (["--space=optimizer.lr={low: 2, high: 1}"], "space: optimizer.lr: "),
        (["--space=optimizer.lr={low: a, high: 1}"], "has something that is no number"),
        (["--space=optimizer.speed=[1]"], "speed.* allowed: .*optimizer.lr"),
        (["--space=model.patch_size=[[3, 4, 4]]"], "does not divide the window"),
        (
            ["--space=model.patch_size=[[4, 4, 4], [1, 8, 4], [1, 4, 8]]"],
            "ratio: 0.5 hides none or",
        ),
        (["--space=model.mask_ratio={low: 0.5, high: 1.0}"], "model.mask_ratio: 1.0 leaves"),
        (["--model.depht=3"], "allowed: .*model.depth"),
        (["--epochs=3"], "--epochs=3 is no option; allowed: "),
        (["--data.batch_size=7", "--space=data.batch_size=null"], "7 does not divide the 16"),
    ],
)
def test_bad_input_is_one_line(config, monkeypatch, words, message):
    """Before any work starts, and nothing is written."""
    with pytest.raises(UserError, match=message) as caught:
        call(monkeypatch, config, "one", *words)
    assert "\n" not in str(caught.value)
    assert list(config.parent.iterdir()) == [config]


def test_unknown_key_of_the_file(config, monkeypatch):
    config.write_text(yaml.safe_dump(TINY | {"trails": 3}))
    with pytest.raises(UserError, match=r"tiny.yaml: trails is unknown; allowed: trials, "):
        call(monkeypatch, config, "one")


def test_without_optuna_it_says_what_to_install():
    """As a process: here it is imported already."""
    hide = "import sys; sys.modules['optuna'] = None; sys.argv = ['study.py']; import study"
    ended = subprocess.run(
        [sys.executable, "-c", hide], cwd=CHAPTER, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert ended.stderr == "error: study.py needs the package optuna: uv sync --group study\n"
