"""Bad input to Lightning's two programs; chapter 0 has what both chapters parse."""

import lightning_train
import lightning_trainer
import pytest

from src.data.pytorch_dataset import DummyDataset
from src.run.atomic_checkpoint_io import AtomicCheckpointIO
from src.run.distributed import RankLoaders
from src.run.errors import UserError
from tests.runs import call, train


def test_ranks_that_cannot_share_are_refused():
    """Broken by: no check in RankLoaders, after which some samples are never read."""
    with pytest.raises(UserError, match="batch_size: 9 is no multiple of 2"):
        RankLoaders(0, 2, dataset=DummyDataset, batch_size=9)
    with pytest.raises(UserError, match="64 validation samples for 66 processes"):
        RankLoaders(0, 66, dataset=DummyDataset, batch_size=66)


def test_processes_that_would_train_alone_are_refused(monkeypatch, tmp_path):
    """As after torchrun without --trainer.devices. Broken by: no check_world_size in Report."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes were started, and 1 train"):
        train(monkeypatch, tmp_path, script=lightning_train)


def test_the_command_line_refuses(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="2"):  # it is not taken for model.depth
        call(monkeypatch, "fit", "--model.dept=3", script=lightning_trainer)
    with pytest.raises(UserError, match="untrained weights"):
        call(monkeypatch, "test", script=lightning_trainer)
    with pytest.raises(
        UserError, match="last is no file"
    ):  # Lightning would begin anew
        call(monkeypatch, "fit", "--ckpt_path=last", script=lightning_trainer)
    monkeypatch.setattr(lightning_trainer, "CHAPTER", tmp_path)
    for setting in (
        "accumulate_grad_batches=2",
        "limit_train_batches=2",
        "precision=16-mixed",
        "gradient_clip_algorithm=value",
        "strategy=fsdp",
        "max_steps=6",
        "callbacks=[]",
        "max_epochs=-1",
        "check_val_every_n_epoch=4",
        "val_check_interval=3",
    ):
        with pytest.raises(
            UserError,
            match=r"step per batch|chapter 5|by the norm|with ddp|max_steps|each epoch|replaces",
        ):
            call(monkeypatch, "fit", f"--trainer.{setting}", script=lightning_trainer)


def test_a_checkpoint_can_be_read_or_is_refused(tmp_path):
    """Broken by: no get_unsafe_globals_in_checkpoint; no load_checkpoint; no dirpath in it."""
    disk = AtomicCheckpointIO()
    path = tmp_path / "last.ckpt"
    disk.save_checkpoint({"global_step": 1}, path)
    unreadable = {"hyper_parameters": {"folder": tmp_path}}
    with pytest.raises(UserError, match="could read pathlib"):
        disk.save_checkpoint(unreadable, path)
    assert disk.load_checkpoint(path) == {"global_step": 1}
    # Of a folder that was moved.
    disk.save_checkpoint({"callbacks": {"best": {"dirpath": "before"}}}, path)
    callbacks = disk.load_checkpoint(path)["callbacks"]
    assert callbacks == {"best": {"dirpath": str(tmp_path)}}
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"cannot resume from .*last.ckpt"):
        disk.load_checkpoint(path)
