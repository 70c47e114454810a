"""CloudUploadCallback in trainings, against a real S3 server: lost machines, policies, the end."""

import pytest
import torch
from src.callbacks import CloudUploadCallback
from src.data.s3_proxy import Fault
from src.errors import UserError

from tests.cloud_runs import copies
from tests.cloud_runs import path as path  # fixtures
from tests.cloud_runs import run as run
from tests.cloud_server import proxy as proxy
from tests.cloud_server import server as server
from tests.lightning_runs import (
    assert_same_lightning_run,
    call_lightning,
    run_cli,
    shared_reference,
)
from tests.lightning_runs import train_lightning as train


@pytest.fixture
def reference(tmp_path_factory):
    return shared_reference(tmp_path_factory.getbasetemp())


@pytest.mark.slow(copies=True)
def test_lost_machine(monkeypatch, server, path, tmp_path, reference, capsys):
    """Trained to step 6, the folder gone, on from the cloud alone: the same bits."""
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=6", *settings) == 0
    assert "last.ckpt of step 6 is there" in capsys.readouterr().out
    (tmp_path / "run").rename(tmp_path / "lost")
    resume = [f"--resume={path}/run", f"--trainer.output_dir={tmp_path}", "--trainer.max_steps=-1"]
    assert call_lightning(monkeypatch, *resume) == 0
    assert "downloaded last-000000006" in capsys.readouterr().out
    assert_same_lightning_run(reference, tmp_path / "run")
    assert copies(path + "/run")[0] == ("last.ckpt", 12)


def test_another_place_keeps_the_best_score(monkeypatch, server, path, tmp_path):
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=6", *settings) == 0
    other = tmp_path / "elsewhere"
    assert call_lightning(monkeypatch, f"--resume={path}/run", f"--trainer.output_dir={other}") == 0
    states = torch.load(other / "run/checkpoints/last.ckpt", weights_only=True)["callbacks"]
    best = next(state for name, state in states.items() if "val_loss" in name)
    assert best["dirpath"] == str(other / "run" / "checkpoints")
    assert best["best_model_score"] is not None


@pytest.mark.slow(copies=True)
def test_policies(monkeypatch, server, path, tmp_path, reference):
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    must, never = "--trainer.resume_policy=must", "--trainer.resume_policy=never"
    with pytest.raises(UserError, match="must, but the run run has no checkpoint"):
        train(monkeypatch, tmp_path, must, *settings)
    assert not (tmp_path / "run").exists()
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=3", never, *settings) == 0
    with pytest.raises(UserError, match="never, but the run run has a checkpoint"):
        train(monkeypatch, tmp_path, never, *settings)
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=7", must, *settings) == 0
    assert train(monkeypatch, tmp_path, *settings) == 0
    assert_same_lightning_run(reference, tmp_path / "run")


def test_a_storage_that_cannot_be_written_is_found_out_at_once(monkeypatch, server, tmp_path, path):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UserError, match=r"access denied: .* \(writing probe-"):
        train(monkeypatch, tmp_path, f"--trainer.cloud_storage_path={path}")
    assert not any(tmp_path.glob("run_*"))


@pytest.mark.slow(copies=True)
def test_what_is_not_in_the_cloud_at_the_end(monkeypatch, proxy, path, tmp_path, capsys):
    """The storage fails when the training has begun: it goes on, and the exit code tells."""
    from src.model.lightning_module import AutoencoderModule

    original = AutoencoderModule.training_step
    monkeypatch.setattr("src.callbacks.CloudUploadCallback.finish", finish_soon)

    def fails_from_step_two(module, *arguments):
        if module.global_step == 2 and not proxy.faults:
            proxy.faults.append(Fault("reset", times=None))
        return original(module, *arguments)

    monkeypatch.setattr(AutoencoderModule, "training_step", fails_from_step_two)
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    assert train(monkeypatch, tmp_path, *settings) == 1
    printed = capsys.readouterr()
    assert "last.ckpt of step 12 is NOT there" in printed.out
    assert "error: not in the cloud: best.ckpt, last.ckpt; on this disk:" in printed.err
    assert (tmp_path / "run" / "summary.json").exists()


finish = CloudUploadCallback.finish


def finish_soon(callback: CloudUploadCallback, trainer, seconds: float) -> None:
    finish(callback, trainer, min(seconds, 1.0))


@pytest.mark.slow(copies=True)
def test_the_command_line_goes_on_from_the_cloud(monkeypatch, server, path, tmp_path, reference):
    """LightningCLI, with the address as --ckpt_path."""
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    assert train(monkeypatch, tmp_path / "first", "--trainer.max_steps=6", *settings) == 0
    assert run_cli(monkeypatch, "fit", tmp_path, f"--ckpt_path={path}/run") == 0
    assert_same_lightning_run(reference, tmp_path / "run")
