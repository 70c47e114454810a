"""Scaling up changes no result: raw PyTorch, Lightning, its command line; stopped or not."""

from signal import SIGTERM
from unittest import mock

import lightning_train
import lightning_trainer as cli
import pytest
import torch

from src.run.config import CHAPTER
from src.run.errors import UserError
from tests.in_phase import event
from tests.runs import call, rows, saved, train


def assert_raw_is_lightning(raw, folder):
    assert rows(raw) == rows(folder)
    weights = {f"model.{name}": weight for name, weight in saved(raw)["model"].items()}
    torch.testing.assert_close(
        saved(folder, "last.ckpt")["state_dict"], weights, rtol=0, atol=0
    )


def test_lightning_is_raw_pytorch_to_the_bit(monkeypatch, tmp_path):
    """With land and clipped gradients. Broken by: no configure_gradient_clipping (at step 2)."""
    settings = [f"-c={CHAPTER}/tests/ocean.yaml", "--trainer.max_epochs=1"]
    raw = train(monkeypatch, tmp_path / "raw", *settings)
    folder = train(
        monkeypatch, tmp_path / "lightning", *settings, script=lightning_train
    )
    assert_raw_is_lightning(raw, folder)


@pytest.mark.slow
def test_the_command_line_gives_the_same_run(monkeypatch, tmp_path, capsys):
    """With chapter 0's files, also by its advice after a signal; it scores and predicts.

    Broken by: no SaveConfigCallback in StopAndSave.stop.
    """
    monkeypatch.setattr(cli, "CHAPTER", tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for module in ("report", "report_callback"):  # pictures take most of the time
        monkeypatch.setattr(f"src.{module}.draw", mock.Mock())
    raw = train(monkeypatch, tmp_path / "raw")
    tiny = [f"-c={CHAPTER}/tests/tiny_cli.yaml", "--trainer.enable_progress_bar=false"]
    with pytest.raises(SystemExit, match="143"), event("step", SIGTERM):
        call(monkeypatch, "fit", *tiny, script=cli)
    advice = capsys.readouterr().out.partition("go on with ")[2]
    call(monkeypatch, *advice.split(), script=cli)
    folder = tmp_path / "output" / "run_1"
    assert_raw_is_lightning(raw, folder)
    other = ["--data.batch_size=4", f"--ckpt_path={folder}/checkpoints/last.ckpt"]
    with pytest.raises(UserError, match="other data"):  # the step would be another one
        call(monkeypatch, "fit", *tiny, *other, script=cli)
    for name in ("validate", "test", "predict"):
        call(
            monkeypatch,
            name,
            *tiny,
            f"--ckpt_path={folder}/checkpoints/last.ckpt",
            script=cli,
        )
    assert (folder / "prediction_0_0.npz").exists()


@pytest.mark.filterwarnings(
    "error:The dirpath has changed"
)  # the best score would be forgotten
@pytest.mark.parametrize("stop", [4, 7])
def test_a_stopped_run_goes_on_to_the_same_bits(monkeypatch, tmp_path, stop):
    """Also after a full disk. Broken by: a fixed step in train_loader; no save_checkpoint."""
    settings = [f"--trainer.max_steps={stop}", f"--data.num_workers={stop % 2}"]
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, *settings, script=lightning_train)
    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", mock.Mock(side_effect=OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            call(monkeypatch, f"--resume={tmp_path}/run_1", script=lightning_train)
    assert saved(tmp_path / "run_1", "last.ckpt")["global_step"] == stop
    monkeypatch.chdir(tmp_path)
    call(monkeypatch, "--resume=run_1", script=lightning_train)
    assert_raw_is_lightning(train(monkeypatch, tmp_path / "raw"), tmp_path / "run_1")
