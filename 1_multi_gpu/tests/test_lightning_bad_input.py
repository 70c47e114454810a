"""Bad input to Lightning's two programs; chapter 0 has what both chapters parse."""

import lightning_train
import lightning_trainer
import pytest
import torch

from src.data.pytorch_dataset import DummyDataset
from src.distributed import RankLoaders
from src.errors import UserError
from tests.runs import call, rows, saved, train


def test_ranks_share_the_samples_or_refuse():
    """Broken by: yield batch in ResumableBatches: all ranks would do the same work."""
    with pytest.raises(UserError, match="batch_size: 9 is no multiple of 2"):
        RankLoaders(0, 2, dataset=DummyDataset, batch_size=9)
    with pytest.raises(UserError, match="64 validation samples for 66 processes"):
        RankLoaders(0, 66, dataset=DummyDataset, batch_size=66)
    ranks = [RankLoaders(rank, 2, dataset=DummyDataset, seed=0) for rank in (0, 1)]
    for kind in ("train", "val"):
        indices = []
        for rank in ranks:
            loader = (
                rank.val_loader() if kind == "val" else rank.train_loader(lambda: 3)
            )
            indices += [int(i) for _, index in loader for i in index]
        assert len(indices) == len(set(indices))


def test_processes_that_would_train_alone_are_refused(monkeypatch, tmp_path):
    """As after torchrun without --trainer.devices. Broken by: no check_world_size in Report."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes were started, and 1 train"):
        train(monkeypatch, tmp_path, script=lightning_train)


def test_more_devices_than_there_are(monkeypatch, tmp_path):
    """Broken by: no look at device_count in main: each process would have its own traceback."""
    gpu = torch.device("cuda")
    monkeypatch.setattr(lightning_train, "choose_device", lambda _: gpu)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(UserError, match=r"trainer.devices: 8; here are 2"):
        train(monkeypatch, tmp_path, "--trainer.devices=8", script=lightning_train)


def test_the_command_line_refuses(monkeypatch, capsys, tmp_path):
    for key in ("--model.dept", "--trainer.max_epoch"):
        with pytest.raises(SystemExit, match="2"):
            call(monkeypatch, "fit", f"{key}=3", script=lightning_trainer)
        assert key in capsys.readouterr().err
    with pytest.raises(UserError, match="untrained weights"):
        call(monkeypatch, "test", script=lightning_trainer)
    monkeypatch.setattr(lightning_trainer, "CHAPTER", tmp_path)
    for setting in (
        "accumulate_grad_batches=2",
        "limit_train_batches=2",
        "precision=16-mixed",
        "gradient_clip_algorithm=value",
        "strategy=fsdp",
    ):
        with pytest.raises(
            UserError, match=r"step per batch|chapter 5|by the norm|works with ddp"
        ):
            call(monkeypatch, "fit", f"--trainer.{setting}", script=lightning_trainer)


def test_damaged_checkpoint_and_non_finite_loss(monkeypatch, tmp_path):
    """Broken by: no load_checkpoint in AtomicCheckpointIO; no isfinite in the clipping."""
    settings = ["--optimizer.lr=1e30", "--trainer.checkpoint_every_n_steps=1"]
    with pytest.raises(UserError, match=r"step \d+: gradient .*optimizer.lr"):
        train(monkeypatch, tmp_path, *settings, script=lightning_train)
    folder = tmp_path / "run_1"
    weights = saved(folder, "last.ckpt")["state_dict"].values()
    assert all(weight.isfinite().all() for weight in weights)
    table = rows(folder)
    path = folder / "checkpoints" / "last.ckpt"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"cannot resume from .*last.ckpt"):
        call(monkeypatch, f"--resume={folder}", script=lightning_train)
    assert rows(folder) == table
