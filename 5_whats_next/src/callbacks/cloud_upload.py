"""Checkpoints that are in the cloud already when the machine is gone."""

import os
import secrets
import time
from pathlib import Path
from threading import Thread
from typing import Any

import lightning as L
import torch.distributed as dist
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from src.callbacks.stop_and_save import StopAndSave
from src.run.cloud import CLOUD_ERRORS, CloudRun, storage_path
from src.run.errors import UserError

UPLOAD_SECONDS = 600  # for the last uploads of a training that is complete


class CloudUploadCallback(Callback):
    """Uploads a run's checkpoints from rank 0 in a thread, and says what has not arrived.

    Args:
        cloud_storage_path: folder of all runs, such as s3://bucket/checkpoints; null follows the
            variable CLOUD_STORAGE_PATH, and else takes s3://embedded/checkpoints; none uploads
            nothing. Keys come from the environment.
        local_dir: where the checkpoints are; null takes the run's own folder.
        upload_interval: epochs between two uploads.
        upload_during_training: upload while the training goes on, and not only at its end.
        upload_on_fit_end: upload the last ones at the end, and wait for them.
        filesystem: protocol of a cloud_storage_path that has none.
        upload_every_n_steps: steps between two uploads inside an epoch, too; 0 means none there.
        run_name: the run's folder in the cloud; null makes a new one.
    """

    def __init__(
        self,
        cloud_storage_path: str | None = None,
        local_dir: str | None = None,
        upload_interval: PositiveInt = 1,
        upload_during_training: bool = True,
        upload_on_fit_end: bool = True,
        filesystem: str = "s3",
        upload_every_n_steps: NonNegativeInt = 0,
        run_name: str | None = None,
    ) -> None:
        self.path = storage_path(cloud_storage_path, filesystem)
        self.local_dir = local_dir
        self.interval = upload_interval
        self.during_training = upload_during_training
        self.on_end = upload_on_fit_end
        self.every = upload_every_n_steps
        self.run_name = run_name
        self.run: Any = None  # a CloudRun, on rank 0
        self.thread: Any = None  # of the newest upload
        # When each file had been written, as it was uploaded last.
        self.uploaded: dict[str, int] = {}

    def state_dict(self) -> dict[str, Any]:
        """What Lightning puts into each checkpoint."""
        return {"run_name": self.run_name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the same folder of the cloud."""
        self.run_name = self.run_name or state["run_name"]

    # Not in on_train_start, which Lightning leaves out if nothing is left to train: the same
    # command then uploads what an outage has kept out of the cloud.
    @rank_zero_only
    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Say where the checkpoints go, and upload what an earlier process has left."""
        folder = Path(trainer.default_root_dir)
        if not self.path:
            print("cloud     none: nothing is uploaded", flush=True)
            return
        # With a random suffix: another machine has a run_1, too.
        self.run_name = self.run_name or f"{folder.name}-{secrets.token_hex(4)}"
        self.run = CloudRun(f"{self.path}/{self.run_name}")
        self.checkpoints = Path(self.local_dir or folder / "checkpoints")
        print(f"cloud     {self.run.url}", flush=True)
        self.begin_upload()

    # Not as a step ends, because ModelCheckpoint writes after all other callbacks.
    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """Upload every so many steps."""
        is_due = self.every and trainer.global_step % self.every == 0
        if self.during_training and is_due:
            self.begin_upload()

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """Upload every so many epochs."""
        is_due = trainer.current_epoch % self.interval == 0
        if self.during_training and is_due:
            self.begin_upload()

    def new_files(self) -> list[Path]:
        """The checkpoints that are not in the cloud as they are now."""
        files = sorted(self.checkpoints.glob("*.ckpt"))
        return [f for f in files if self.uploaded.get(f.name) != f.stat().st_mtime_ns]

    def begin_upload(self) -> None:
        """Upload what is new in a thread; there is never more than one."""
        if not self.run:
            return
        if self.thread and self.thread.is_alive():
            print("cloud     the upload before is still under way", flush=True)
            return
        self.thread = Thread(target=self.upload_new, daemon=True)
        self.thread.start()

    def upload_new(self) -> None:
        """Upload new checkpoints. A failure is printed, and tried again with the next upload."""
        for path in self.new_files():
            # The training replaces the file meanwhile; the link stays what it is.
            link = path.with_suffix(".upload")
            try:
                link.unlink(missing_ok=True)
                os.link(path, link)
                written = link.stat().st_mtime_ns
                self.run.upload(link)
                self.uploaded[path.name] = written
            except (*CLOUD_ERRORS, UserError) as error:
                print(f"cloud     {path.name} failed: {error}", flush=True)
            finally:
                link.unlink(missing_ok=True)  # the bytes have another name

    def on_train_end(self, *_: Any) -> None:
        """Upload the last ones, while Report scores the model."""
        if self.on_end:
            self.begin_upload()

    def on_fit_end(self, *_: Any) -> None:
        """Wait for the last uploads. Raises UserError if something is not in the cloud."""
        if self.finish(UPLOAD_SECONDS):
            raise UserError("not all is in the cloud; start the run again for the rest")

    def on_exception(
        self, trainer: L.Trainer, module: L.LightningModule, error: BaseException
    ) -> None:
        """Wait for the last uploads, as long as the reason of the end allows."""
        try:
            if isinstance(error, SystemExit) and not error.code:  # max_steps: complete
                self.on_fit_end()
            else:
                self.finish(seconds_left(trainer))
        finally:
            if isinstance(error, SystemExit) and dist.is_initialized():
                # The launcher would end rank 0 in its uploads if another rank had ended.
                dist.barrier()

    def finish(self, seconds: float) -> list[Path]:
        """Upload what is new, wait for it, and return what is not in the cloud, after naming it."""
        if not self.thread or not self.on_end:
            return []
        end = time.monotonic() + seconds
        self.thread.join(seconds)
        self.begin_upload()
        self.thread.join(end - time.monotonic())
        self.thread = None  # on_exception comes after an error in on_fit_end, too
        missing = self.new_files()
        for path in sorted(self.checkpoints.glob("*.ckpt")):
            state = "is NOT in the cloud" if path in missing else "is in the cloud"
            print(f"cloud     {path.name} {state}", flush=True)
        return missing


def seconds_left(trainer: L.Trainer) -> float:
    """What is left of SECONDS_AFTER_SIGTERM, in which a scheduler waits before it kills."""
    seconds = float(os.environ.get("SECONDS_AFTER_SIGTERM", 25))
    for callback in trainer.callbacks:
        if isinstance(callback, StopAndSave) and callback.request:
            seconds -= callback.request.seconds_since_signal()
    return seconds
