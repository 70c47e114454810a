"""Bad input: one clear line, a non-zero exit code, and nothing written."""

import os
import sys
from pathlib import Path

import pytest
import torch

from src.run.config import choose_device
from src.run.errors import UserError, one_line_errors
from tests.runs import call, new, rows, train

CLOSE = "--data.dataset=OceanDataset --data.dataset.val_period=[2009-04,2010-03]"
NO_DATE = "--data.dataset=OceanDataset --data.dataset.train_period=[June,2008-09]"
BAD_INPUT = {
    "--model.mask_ration=0.5": "mask_ration",
    "--model.patch_size=[3,4,4]": "(3, 4, 4) has to divide [4, 8, 8]",
    "--model.num_heads=7": "width 16 is odd, or no multiple of 7 heads",
    "--model.mask_ratio=1.7": "model.mask_ratio: 1.7 hides 14 of 8",
    "--data.batch_size=35": "34 samples to train and 4 to validate, batch_size 35",
    "--optimizer.lr=-1": "optimizer: Invalid learning rate: -1.0",
    CLOSE: "val_period ['2009-04', '2010-03'] have to be a window of 12 time steps apart",
    NO_DATE: "there are no data of June; they go from 2006-04-16",
    "--resume=nowhere": "cannot read nowhere/checkpoints/last.ckpt",
    "--trainer.accelerator=mps": "trainer.accelerator: PyTorch",
}


def one_line(monkeypatch, capfd, function) -> str:
    """What a program prints as its only line of error; it ends with exit code 1."""
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="1"), one_line_errors():
        function()
    (line,) = capfd.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("arguments", BAD_INPUT)
def test_bad_input(monkeypatch, tmp_path, capfd, arguments):
    """Broken by: no UserError in USER_ERRORS."""
    monkeypatch.setattr(torch.mps, "is_available", lambda: False)
    settings = [*new(tmp_path / "output"), *arguments.split()]
    line = one_line(monkeypatch, capfd, lambda: call(monkeypatch, *settings))
    assert BAD_INPUT[arguments] in line
    assert not (tmp_path / "output").exists()


def test_a_worker_s_error_is_one_line_and_a_bug_a_traceback(monkeypatch, capfd):
    """Broken by: no splitlines, or no isinstance, in one_line_errors."""
    text = "Caught OSError in DataLoader worker process 0.\nTraceback\nOSError: gone"

    def fail(error: Exception) -> None:
        raise error

    line = one_line(monkeypatch, capfd, lambda: fail(OSError(text)))
    assert line == "error: OSError: gone"
    with pytest.raises(SystemExit, match="1"), one_line_errors():
        fail(ValueError("a bug"))
    assert "Traceback" in capfd.readouterr().err


def test_a_card_without_kernels_is_named(monkeypatch):
    """A V100 with a PyTorch that has dropped it. Broken by: no `oldest` in choose_device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    with pytest.raises(UserError, match=r"card \(sm_70\).*sm_75"):
        choose_device("auto")


def test_a_damaged_checkpoint_is_never_loaded(monkeypatch, tmp_path):
    """Nor one with code inside, the first. Broken by: weights_only=False in read_checkpoint."""
    path = train(monkeypatch, tmp_path) / "checkpoints" / "last.ckpt"
    content = path.read_bytes()
    torch.save({"model": Path}, path)
    for damaged in (path.read_bytes(), b"", content[:100], content[:-10]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot read .*last.ckpt.*best.ckpt"):
            call(monkeypatch, f"--resume={tmp_path}/run_1")


def test_a_resumed_run_keeps_its_configuration(monkeypatch, tmp_path):
    """All but what may change. Broken by: no check_unchanged in parse_config."""
    folder = train(monkeypatch, tmp_path)
    fixed = ["model.depth", "optimizer.lr", "data.batch_size", "seed_everything"]
    for key in [*fixed, "data.dataset.num_samples"]:
        name = key.rpartition(".")[2]
        with pytest.raises(UserError, match=f"{name}: 3.*; the run to resume has"):
            call(monkeypatch, f"--resume={folder}", f"--{key}=3")
    more = ["--trainer.max_epochs=4", "--trainer.max_steps=13", "--data.num_workers=1"]
    call(monkeypatch, f"--resume={folder}", *more)
    # It is kept for the next one, too.
    call(monkeypatch, f"--resume={folder}")
    assert rows(folder)[-1]["step"] == "16"


def test_weights_that_are_not_finite_are_never_saved(monkeypatch, tmp_path):
    """Broken by: no check_finite in TrainingState.save."""
    settings = ["--trainer.log_every_n_steps=100", "--optimizer.lr=1e30"]
    with pytest.raises(UserError, match=r"step 2: the loss or weights are not finite"):
        train(monkeypatch, tmp_path, *settings, "--trainer.checkpoint_every_n_steps=2")
    assert not list(tmp_path.rglob("*.ckpt"))
