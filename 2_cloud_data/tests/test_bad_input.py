"""Bad input: one clear line that names the key, a non-zero exit code, and nothing written."""

import os
import runpy
import sys

import pytest
import pytorch_train
import torch
from src.errors import UserError

from tests.runs import SCRIPT, call, reference_run, rows, train, weights

BAD_INPUT = {
    "unknown key": (["--model.mask_ration=0.5"], "mask_ration"),
    "wrong type": (["--data.batch_size=many"], "data.batch_size"),
    "patch size": (["--model.patch_size=[3,4,4]"], "model.patch_size: [3, 4, 4]"),
    "mask ratio": (["--model.mask_ratio=1.7"], "model.mask_ratio: 1.7"),
    "batch size": (["--data.batch_size=35"], "data.batch_size: 35 does not fit the 34"),
    "unknown dataset": (["--data.dataset=Cifar"], "CIFAR10Dataset"),
    "no archive": (["--data.dataset=CIFAR10Dataset", "--data.dataset.path=no.gz"], "no file no.gz"),
    "nothing valid": (["--data.dataset.land_fraction=1"], "land_fraction: 1.0 leaves no valid"),
    "no sample": (["--data.dataset.num_val_samples=0"], "num_val_samples: 0 is too small"),
    "clip": (["--trainer.gradient_clip_val=0"], "trainer.gradient_clip_val: 0.0 is not positive"),
    "max steps": (["--trainer.max_steps=0"], "trainer.max_steps: 0 is neither -1 nor positive"),
    "betas": (["--optimizer.betas=[0.9,1.5]"], "optimizer.betas: [0.9, 1.5] is outside"),
    "learning rate": (["--optimizer.lr=-1"], "optimizer.lr: -1"),
    "nothing to resume": (["--resume=nowhere"], "nowhere is neither the folder of a run"),
    "no epoch": (["--trainer.max_epochs=0"], "trainer.max_epochs: 0 is too small"),
    "workers": (
        ["--data.num_workers=-1"],
        "data.num_workers: -1 is too small; allowed: 0 and more",
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input(monkeypatch, tmp_path, arguments, expected):
    """One clear line that names the key, and nothing is written."""
    with pytest.raises(UserError) as caught:
        train(monkeypatch, tmp_path / "output", *arguments)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "output").exists()


@pytest.mark.slow
def test_bad_input_exit_code(monkeypatch):
    """As a script: Python prints the text of SystemExit on stderr and exits with code 1."""
    monkeypatch.setattr(sys, "argv", ["pytorch_train.py", "--model.mask_ratio=1.7"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert str(caught.value.code).startswith("error: model.mask_ratio: 1.7")


def test_unknown_wandb_mode(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    output = f"--trainer.output_dir={tmp_path / 'output'}"
    monkeypatch.setattr(sys, "argv", ["pytorch_train.py", output])
    with pytest.raises(UserError, match=r"WANDB_MODE: 'sometimes' is unknown; allowed: offline"):
        pytorch_train.main()
    assert not (tmp_path / "output").exists()


def missing_device() -> str:
    return "mps" if torch.cuda.is_available() else "cuda"


def test_device_that_is_not_there(monkeypatch, tmp_path):
    with pytest.raises(
        UserError, match=rf"trainer.accelerator: there is no {missing_device()} dev"
    ):
        train(monkeypatch, tmp_path / "output", f"--trainer.accelerator={missing_device()}")
    assert not (tmp_path / "output").exists()


def test_unwritable_output_folder(monkeypatch, tmp_path):
    """A file stands where the folder should be; this also stops root, who may write anywhere."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"trainer.output_dir: cannot write to .*file/output"):
        train(monkeypatch, tmp_path / "file" / "output")


def test_read_only_output_folder(monkeypatch, tmp_path):
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write to read-only folders")
    with pytest.raises(UserError, match=r"trainer.output_dir: cannot write to"):
        train(monkeypatch, tmp_path / "output")


def test_resume_with_another_model(monkeypatch, tmp_path):
    reference = reference_run(monkeypatch, tmp_path)
    before = (reference / "checkpoints" / "last.pt").read_bytes()
    with pytest.raises(UserError, match=r"model.embed_dim is 16 in .*last.pt, but 32 in this"):
        call(monkeypatch, f"--resume={reference}", "--model.embed_dim=32")
    assert (reference / "checkpoints" / "last.pt").read_bytes() == before


def test_resume_from_a_truncated_checkpoint(monkeypatch, tmp_path):
    reference = reference_run(monkeypatch, tmp_path)
    path = reference / "checkpoints" / "last.pt"
    path.write_bytes(path.read_bytes()[:5000])
    table = rows(reference)
    with pytest.raises(UserError, match=r"last.pt is truncated or not a checkpoint"):
        call(monkeypatch, f"--resume={reference}")
    assert rows(reference) == table
    assert call(monkeypatch, f"--resume={reference / 'checkpoints' / 'best.pt'}") == 0


def test_non_finite_loss_stops_before_the_weights_change(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"step \d+: the loss is .*Lower optimizer.lr"):
        train(monkeypatch, tmp_path, "--optimizer.lr=1e30", "--trainer.checkpoint_every_n_steps=1")
    saved = weights(tmp_path / "run_1")
    assert all(torch.isfinite(tensor).all() for tensor in saved.values())


def test_missing_file_of_ones_own(monkeypatch, tmp_path):
    config = SCRIPT.parent / "config" / "my_dataset.yaml"
    with pytest.raises(UserError, match=r"data.dataset.path: cannot read .*absent.nc"):
        call(monkeypatch, f"--config={config}", f"--data.dataset.path={tmp_path}/absent.nc")
