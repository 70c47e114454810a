"""What only Lightning's programs can be given wrongly; chapter 0 has the rest."""

import lightning_train
import pytest

from src.data.loaders import Loaders
from src.data.pytorch_dataset import DummyDataset
from src.model.lightning_module import AutoencoderModule
from src.run.checkpoint_io import AtomicCheckpointIO
from src.run.errors import UserError
from tests.runs import call, train


def test_ranks_that_cannot_share_are_refused(monkeypatch, tmp_path):
    """Broken by: no check in Loaders, or none of WORLD_SIZE in main."""
    with pytest.raises(UserError, match="66 processes cannot share a batch_size of 70"):
        Loaders(DummyDataset, batch_size=70, world_size=66)
    monkeypatch.setenv(
        "WORLD_SIZE", "2"
    )  # as after torchrun, without --trainer.devices
    with pytest.raises(UserError, match="2 processes were started"):
        train(monkeypatch, tmp_path, script=lightning_train)


def test_a_checkpoint_can_be_read_or_is_refused(monkeypatch, tmp_path):
    """Broken by: no get_unsafe_globals_in_checkpoint; no look for state_dict."""
    disk = AtomicCheckpointIO()
    path = tmp_path / "last.ckpt"
    with pytest.raises(UserError, match="could read pathlib"):
        disk.save_checkpoint({"hyper_parameters": {"folder": tmp_path}}, path)
    assert not list(tmp_path.iterdir())
    disk.save_checkpoint({"settings": ""}, path)  # as LightningCLI's
    with pytest.raises(UserError, match="no checkpoint of Lightning"):
        disk.load_checkpoint(path)
    (tmp_path / "checkpoints").mkdir()
    path.rename(tmp_path / "checkpoints" / path.name)
    with pytest.raises(UserError, match="no checkpoint of a train script"):
        call(monkeypatch, f"--resume={tmp_path}", script=lightning_train)


def test_a_loss_that_is_not_finite_ends_the_run(monkeypatch, tmp_path):
    """Though the weights are finite, as with 16-mixed. Broken by: no loss in check_finite."""
    step = AutoencoderModule.training_step
    add_nan = lambda *a: step(*a) + float("nan")  # noqa: E731
    monkeypatch.setattr(AutoencoderModule, "training_step", add_nan)
    with pytest.raises(UserError, match="step 1: the loss or weights are not finite"):
        train(monkeypatch, tmp_path, script=lightning_train)
