"""Training with the fast reader: the curve of the data in memory, to the bit."""

import pytest
import yaml
from src.config import CHAPTER
from src.data.fast_dataset import FastDataset
from src.data.usecase_cloud_dataset import CloudDataset

from tests.lightning_runs import call_cli, call_lightning, lightning_weights
from tests.runs import call, weights
from tests.test_cloud_train import SHORT, assert_same_bits
from tests.test_cloud_train import in_memory as in_memory  # a fixture


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("ahead", [0, 4])
def test_memory_and_fast_reader_give_the_same_bits(monkeypatch, tmp_path, in_memory, ahead, capsys):
    """With Lightning, on the real server; validation and the baselines included."""
    arguments = [f"--data.dataset.batches_ahead={ahead}", f"--trainer.output_dir={tmp_path}"]
    assert call_lightning(monkeypatch, *SHORT, *arguments) == 0
    assert_same_bits(tmp_path / "run_1", in_memory)
    assert "requests, 0 retries, " in capsys.readouterr().out


def test_raw_pytorch_reads_ahead_too(monkeypatch, tmp_path, in_memory):
    assert call(monkeypatch, *SHORT, f"--trainer.output_dir={tmp_path}") == 0
    theirs = lightning_weights(in_memory)
    assert all(w.equal(theirs[key]) for key, w in weights(tmp_path / "run_1").items())


@pytest.mark.slow(copies=True)
def test_resumed_run_is_identical(monkeypatch, tmp_path, in_memory):
    """Stopped with batches on their way; the command line."""
    settings = [word for word in SHORT if "picture_every" not in word and "wandb" not in word]
    output = f"--trainer.logger.init_args.output_dir={tmp_path}"
    assert call_cli(monkeypatch, "fit", *settings, output, "--trainer.max_steps=13") == 0
    last = tmp_path / "run_1" / "checkpoints" / "last.ckpt"
    arguments = [*settings, output, f"--ckpt_path={last}", "--trainer.max_steps=-1"]
    assert call_cli(monkeypatch, "fit", *arguments) == 0
    assert_same_bits(tmp_path / "run_1", in_memory)


def test_default_configuration_is_the_fast_reader():
    """Both programs, with the same section; chapter 2's reader stays for comparison."""
    sections = [
        yaml.safe_load((CHAPTER / "config" / name).read_text())["data"]
        for name in ("config.yaml", "cli_config.yaml")
    ]
    assert sections[0] == sections[1]
    assert sections[0]["dataset"]["class_path"] == "src.data.fast_dataset.FastDataset"
    assert issubclass(FastDataset, CloudDataset)
