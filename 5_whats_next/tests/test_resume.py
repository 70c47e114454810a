"""What a resumed run may change, and a module that is not ours."""

import gc
import secrets
import shutil

import lightning as L
import lightning_train
import pytest
import torch
from jsonargparse import Namespace
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from src.callbacks import cloud_upload
from src.run import cloud
from src.run.config import CHAPTER, check_unchanged, parse_config
from src.run.errors import UserError
from tests.runs import call, rows, saved, train

NO_CLOUD = "--trainer.cloud_storage_path=none"
DATASET = "data.dataset.init_args"
FREE = ["model.compile", "data.num_workers", "trainer.devices", "trainer.precision"]
FREE += [f"{DATASET}.{key}" for key in ("url", "patience", "concurrency", "cache_mb")]
FIXED = ["seed_everything", "model.depth", "optimizer.lr", "data.batch_size"]
FIXED += [f"{DATASET}.{key}" for key in ("window", "train_stride", "val_period")]


@pytest.mark.parametrize("key", [*FREE, *FIXED])
def test_what_changes_no_weights_may_change(key):
    """Broken by: no FREE_ON_RESUME in check_unchanged; a key too many in it."""
    before = Namespace()
    before[key] = 1
    after = Namespace()
    after[key] = 2
    if key in FREE:
        check_unchanged(before, after)
    else:
        with pytest.raises(UserError, match=f"{key}: 2; the run to resume has 1"):
            check_unchanged(before, after)


def test_a_run_is_retuned(monkeypatch, tmp_path):
    """And a run that is complete can be started again. Broken by: Tracker in on_train_start."""
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, NO_CLOUD, "--trainer.max_steps=6")
    folder = tmp_path / "run_1"
    words = [f"--resume={folder}", "--trainer.precision=bf16-mixed"]
    trained = saved(folder)["callbacks"]["DeviceHours"]["time_elapsed"]
    for _ in range(2):
        gc.collect()  # the lock of a call that has raised
        assert call(monkeypatch, *words, "--trainer.log_every_n_steps=1") == 0
    assert rows(folder)[-1]["step"] == "12"
    now = saved(folder)["callbacks"]["DeviceHours"]["time_elapsed"]
    assert now["train"] > trained["train"] > 0


@pytest.mark.parametrize("path", (CHAPTER / "config").glob("*.yaml"))
def test_the_configurations(path):
    """Broken by: a key that is not there."""
    if path.name != "cli_config.yaml":
        parse_config("", lightning_train.CLASSES, [f"-c={path}"])


class MyModule(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.net(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class MyData(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(48, 4)), batch_size=8)

    val_dataloader = train_dataloader


def test_my_own_model_goes_up_and_comes_back(monkeypatch, tmp_path):
    """Broken by: no signature in lightning_train.build; no isinstance in Report.on_fit_end."""
    classes = (MyModule, MyData, lightning_train.LightningSettings)
    monkeypatch.setattr(lightning_train, "CLASSES", classes)
    (tmp_path / "my.yaml").write_text("{trainer: {log_every_n_steps: 1}}")
    name = f"run-{secrets.token_hex(4)}"
    words = [f"-c={tmp_path}/my.yaml", f"--trainer.output_dir={tmp_path}"]
    words += ["--trainer.wandb=disabled", f"--trainer.run_name={name}"]
    with pytest.raises(SystemExit, match="0"):
        call(monkeypatch, *words, "--trainer.max_steps=9")
    gc.collect()
    shutil.rmtree(tmp_path / name)
    assert call(monkeypatch, *words) == 0
    steps = [row["step"] for row in rows(tmp_path / name) if row["train_loss"]]
    assert steps == [str(number) for number in range(1, 31)]


class Now:
    def __init__(self, target, daemon) -> None:
        self.start = target

    def is_alive(self) -> bool:
        return False

    def join(self, timeout) -> None:
        pass


@pytest.mark.parametrize(
    ("during_training", "on_fit_end", "steps"),
    [(True, True, [12, 24]), (False, True, [24]), (True, False, [12])],
)
def test_the_callback_alone(monkeypatch, tmp_path, during_training, on_fit_end, steps):
    """With the blog's six arguments, in a Trainer of your own.

    Broken by: no local_dir, or no interval, in CloudUploadCallback.
    """
    monkeypatch.setattr(cloud_upload, "Thread", Now)
    uploaded = []
    upload = lambda run, file: uploaded.append((run.url, cloud.saved_step(file)))  # noqa: E731
    monkeypatch.setattr(cloud_upload.CloudRun, "upload", upload)
    mine = ModelCheckpoint(tmp_path, filename="mine", enable_version_counter=False)
    callback = cloud_upload.CloudUploadCallback(
        cloud_storage_path=f"{tmp_path}/cloud",
        local_dir=str(tmp_path),
        upload_interval=2,
        upload_during_training=during_training,
        upload_on_fit_end=on_fit_end,
        filesystem="file",
    )
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = L.Trainer(max_epochs=4, callbacks=[callback, mine], **quiet)
    trainer.fit(MyModule(), MyData())
    url = f"file://{tmp_path}/cloud/{callback.run_name}"
    assert uploaded == [(url, step) for step in steps]
    assert cloud.storage_path("none") == ""
