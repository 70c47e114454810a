"""The LightningModule: the model inside, what a checkpoint keeps, and the schedule."""

import inspect

import lightning as L
import pytest
import torch
from src.data.lightning_datamodule import FieldDataModule
from src.data.pytorch_dataset import DummyDataset
from src.errors import UserError
from src.lightning_settings import quiet
from src.model.lightning_module import AutoencoderModule
from src.model.pytorch_model import MaskedAutoencoder

SHAPE = (2, 4, 8, 8)
SMALL = {"patch_size": (2, 4, 4), "embed_dim": 16, "decoder_embed_dim": 16, "depth": 1}
OPTIMIZER = {"lr": 0.5, "betas": [0.1, 0.2], "weight_decay": 0.3, "warmup_fraction": 0.25}


def new_trainer() -> L.Trainer:
    """A Trainer that stops after one of five epochs' steps, with nothing else around it."""
    quiet()
    quick = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quick |= {"enable_checkpointing": False, "limit_val_batches": 0}
    return L.Trainer(accelerator="cpu", devices=1, max_epochs=5, max_steps=1, **quick)


def one_step(module: AutoencoderModule) -> L.Trainer:
    """The Trainer after one of twenty steps: five epochs of 34 samples, eight in a batch."""
    trainer = new_trainer()
    data = FieldDataModule(lambda split: DummyDataset(split, SHAPE, 34, 6), batch_size=8)
    trainer.fit(module, data)
    return trainer


def test_unknown_model_argument():
    with pytest.raises(TypeError, match="mask_ration"):
        AutoencoderModule(sample_shape=SHAPE, mask_ration=0.5).configure_model()


def test_every_model_argument_is_kept():
    """In the checkpoint as well: what is not in hparams could not be loaded again."""
    values = {"mask_ratio": 0.5, "num_heads": 2, "decoder_depth": 1, "decoder_num_heads": 8}
    values |= {"norm_pix_loss": True, "activation_checkpointing": True, "compile": True}
    values |= {"lean_decoder": True, **SMALL}
    module = AutoencoderModule(sample_shape=SHAPE, **values)
    assert set(values) == set(inspect.signature(MaskedAutoencoder).parameters) - {
        "sample_shape",
        "seed",
    }
    assert values.items() <= dict(module.hparams).items()


def test_shape_is_given_or_taken_from_the_data():
    given, taken = AutoencoderModule(sample_shape=SHAPE, **SMALL), AutoencoderModule(**SMALL)
    given.configure_model()
    one_step(taken)
    assert given.model.grid == taken.model.grid
    assert taken.hparams["sample_shape"] == SHAPE


def test_needs_its_own_data():
    loader = torch.utils.data.DataLoader(torch.zeros(4, *SHAPE))
    with pytest.raises(UserError, match="AutoencoderModule needs a FieldDataModule"):
        new_trainer().fit(AutoencoderModule(**SMALL), loader, loader)


@pytest.mark.parametrize("epoch", [None, 0, 2])
def test_forward_is_the_models(epoch):
    """The same initial weights from the same seed, the same masks and the same output."""
    module = AutoencoderModule(sample_shape=SHAPE, seed=7, **SMALL)
    torch.manual_seed(0)
    module.configure_model()
    torch.manual_seed(0)
    model = MaskedAutoencoder(SHAPE, seed=7, **SMALL)
    x, index = torch.randn(3, *SHAPE), torch.arange(3)
    ours, theirs = module(x, index, epoch), model(x, index, epoch)
    assert ours.prediction.equal(theirs.prediction)
    assert ours.hidden.equal(theirs.hidden)
    assert ours.squared_error.equal(theirs.squared_error)


def test_checkpoint_keeps_settings_and_weights(tmp_path):
    """load_from_checkpoint needs neither the data nor the settings."""
    module = AutoencoderModule(optimizer=OPTIMIZER, seed=7, mask_ratio=0.5, **SMALL)
    one_step(module).save_checkpoint(tmp_path / "one.ckpt")
    loaded = AutoencoderModule.load_from_checkpoint(tmp_path / "one.ckpt", weights_only=True)
    assert dict(loaded.hparams) == dict(module.hparams)
    assert loaded.hparams["optimizer"] == OPTIMIZER
    assert (loaded.model.mask_ratio, loaded.model.seed) == (0.5, 7)
    ours, theirs = module.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(ours[key].equal(theirs[key]) for key in ours)


@pytest.mark.parametrize("world_size", [1, 4])
def test_schedule_does_not_depend_on_the_devices(monkeypatch, world_size):
    """5 of 20 steps warm up, to the same learning rate, on one device and on four."""
    module = AutoencoderModule(optimizer=OPTIMIZER, **SMALL)
    trainer = one_step(module)
    monkeypatch.setattr(L.Trainer, "world_size", world_size)
    assert trainer.world_size == module.data.world_size == world_size
    (optimizer,), (schedule,) = module.configure_optimizers()
    scale = schedule["scheduler"].lr_lambdas[0]
    assert schedule["interval"] == "step"
    assert [step for step in range(20) if scale(step) == 1] == [5]
    assert scale(20) == pytest.approx(0)
    assert schedule["scheduler"].base_lrs == [0.5, 0.5]
    assert optimizer.defaults["betas"] == (0.1, 0.2)
