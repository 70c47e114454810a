"""Bad input: one clear line, a non-zero exit code, and nothing written."""

import pytest
import torch
from src.config import CHAPTER
from src.errors import UserError, one_line_errors

from tests.runs import TINY, call, rows, saved, train

OCEAN = "--data.dataset=OceanDataset"
BAD_INPUT = {
    "unknown key": (["--model.mask_ration=0.5"], "mask_ration"),
    "key cut short": (["--model.dept=3"], "--model.dept"),
    "wrong type": (["--data.batch_size=many"], "data.batch_size"),
    "patch size": (["--model.patch_size=[3,4,4]"], "model.patch_size: (3, 4, 4)"),
    "heads": (
        ["--model.num_heads=7"],
        "width 16 is odd, < 6 or no multiple of 7 heads",
    ),
    "mask ratio": (["--model.mask_ratio=1.7"], "model.mask_ratio"),
    "nothing hidden": (
        ["--model.mask_ratio=0.01"],
        "model.mask_ratio: 0.01 of 8 patches",
    ),
    "batch size": (
        ["--data.batch_size=35"],
        "34 to train and 4 to validate, batch_size 35",
    ),
    "unknown dataset": (["--data.dataset=Cifar"], "Cifar"),
    "no archive": (
        [f"-c={CHAPTER}/config/cifar10.yaml", "--data.dataset.path=no.gz"],
        "no.gz",
    ),
    "too close": ([OCEAN, "--data.dataset.val_months=[36,48]"], "val_months (36, 48)"),
    "nothing to resume": (["--resume=nowhere"], "nowhere/config.yaml"),
    "no such device": (["--trainer.accelerator=mps"], "trainer.accelerator: mps"),
}


@pytest.mark.parametrize(("arguments", "expected"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input(monkeypatch, tmp_path, arguments, expected):
    monkeypatch.setattr(torch.mps, "is_available", lambda: False)
    with pytest.raises(SystemExit) as caught, one_line_errors():
        call(monkeypatch, TINY, f"--trainer.output_dir={tmp_path}/output", *arguments)
    assert expected in caught.value.code
    assert "\n" not in caught.value.code
    assert not (tmp_path / "output").exists()


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


def test_a_non_finite_loss_stops_before_the_weights_change(monkeypatch, tmp_path):
    """Broken by: no isfinite in train_step."""
    with pytest.raises(UserError, match=r"step \d+: loss .*optimizer.lr"):
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
