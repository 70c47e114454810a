"""Bad input: one clear line, a non-zero exit code, and nothing written."""

import os

import pytest
import torch

from src.run.config import choose_device
from src.run.errors import UserError, one_line_errors
from src.run.tracking import new_run_folder
from tests.runs import TINY, call, rows, saved, train

CLOSE = "--data.dataset=OceanDataset --data.dataset.val_period=[2009-04,2010-03]"
BAD_INPUT = {
    "--model.mask_ration=0.5": "mask_ration",
    "--model.dept=3": "--model.dept",
    "--model.patch_size=[3,4,4]": "(3, 4, 4) does not divide (4, 8, 8)",
    "--model.num_heads=7": "width 16 is odd, < 6 or no multiple of 7 heads",
    "--seed_everything=-1": "seed_everything",
    "--model.mask_ratio=1.7": "model.mask_ratio",
    "--model.mask_ratio=0.01": "model.mask_ratio: 0.01 hides 0 of 8",
    "--data.batch_size=35": "34 to train and 4 to validate, batch_size 35",
    CLOSE: "val_period ['2009-04', '2010-03'] have to be a window of 12",
    "--resume=nowhere": "nowhere/config.yaml",
    "--trainer.accelerator=mps": "trainer.accelerator: mps",
}


@pytest.mark.parametrize("arguments", BAD_INPUT)
def test_bad_input(monkeypatch, tmp_path, arguments):
    monkeypatch.setattr(torch.mps, "is_available", lambda: False)
    with pytest.raises(SystemExit) as caught, one_line_errors():
        call(
            monkeypatch,
            TINY,
            f"--trainer.output_dir={tmp_path}/output",
            *arguments.split(),
        )
    assert BAD_INPUT[arguments] in caught.value.code
    assert "\n" not in caught.value.code
    assert not (tmp_path / "output").exists()


def test_a_link_to_nowhere_is_no_folder_for_runs(tmp_path):
    """Broken by: parents=True in the loop of new_run_folder (it hangs)."""
    (tmp_path / "output").symlink_to(tmp_path / "gone")
    with pytest.raises(FileExistsError):
        new_run_folder(tmp_path / "output")


@pytest.mark.parametrize("label", ["CUDA", "CUDA UMD"])
def test_a_card_that_pytorch_cannot_use_is_named(monkeypatch, tmp_path, capsys, label):
    """With both versions. Broken by: no unusable_card in choose_device; available[0] there."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f"#!/bin/sh\necho '| Driver Version: 470.82 {label} Version: 11.4 |'"
    )
    timeout = tmp_path / "timeout"  # a Mac has none
    timeout.write_text('#!/bin/sh\nshift; exec "$@"')
    smi.chmod(0o755)
    timeout.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    problem = rf"CUDA 11.4, this PyTorch for {torch.version.cuda or 'no GPU'}"
    with pytest.raises(UserError, match=problem):
        choose_device("cuda")
    # Nor is Apple's taken.
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "cpu"
    assert problem in capsys.readouterr().out


def test_a_damaged_checkpoint_is_never_loaded(monkeypatch, tmp_path):
    """Nor one with code inside, the last. Broken by: weights_only=False in read_checkpoint."""
    folder = train(monkeypatch, tmp_path)
    path, table = folder / "checkpoints" / "last.pt", rows(folder)
    content = path.read_bytes()
    torch.save({"model": print}, tmp_path / "evil")
    cut = [content[:keep] for keep in (0, 100, len(content) // 2, len(content) - 10)]
    for damaged in (*cut, (tmp_path / "evil").read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot resume from .*last.pt"):
            call(monkeypatch, f"--resume={folder}")
    assert rows(folder) == table


def test_a_resumed_run_keeps_its_configuration(monkeypatch, tmp_path):
    folder = train(monkeypatch, tmp_path)
    for change in (
        "model.depth=3",
        "optimizer.lr=1",
        "data.batch_size=4",
        "seed_everything=1",
    ):
        with pytest.raises(UserError, match=f"--resume: {change[:5]}"):
            call(monkeypatch, f"--resume={folder}", f"--{change}")
    # What may change is kept for the next one. Broken by: no save_settings after a resume.
    call(
        monkeypatch,
        f"--resume={folder}",
        "--trainer.max_epochs=4",
        "--trainer.max_steps=13",
    )
    call(monkeypatch, f"--resume={folder}")
    assert rows(folder)[-1]["step"] == "16"


def test_a_non_finite_loss_stops_before_the_weights_change(monkeypatch, tmp_path):
    """Broken by: no isfinite in clip_gradients."""
    with pytest.raises(UserError, match=r"step \d+: gradient .*optimizer.lr"):
        train(
            monkeypatch,
            tmp_path,
            "--optimizer.lr=1e30",
            "--trainer.checkpoint_every_n_steps=1",
        )
    assert all(
        weight.isfinite().all()
        for weight in saved(tmp_path / "run_1")["model"].values()
    )
