"""Checkpoints that are in the cloud already when the machine is gone."""

import os
import secrets
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from src.checkpoint_files import add_name, read_step
from src.cloud_run import CloudFolder, upload_checkpoint
from src.data.s3_server import BUCKET
from src.errors import UserError

PAUSE = 5.0  # seconds between two attempts of an upload, each with its own retries
# Seconds for the last uploads: at the end of a training; at a signal or an error, when the machine
# may be gone in a moment.
PATIENCE, PATIENCE_ON_ERROR = 600.0, 15.0


def storage_path(configured: str | None, filesystem: str = "s3") -> str:
    """The configured path, else CLOUD_STORAGE_PATH, else the embedded server; empty for none."""
    path = (
        configured
        or os.environ.get("CLOUD_STORAGE_PATH")
        or f"s3://{BUCKET}/checkpoints"
    )
    if path == "none":
        return ""
    return (path if "://" in path else f"{filesystem}://{path}").rstrip("/")


# Uploads in the background; where the network is slow, the newest file of a name wins.
class Uploader(threading.Thread):
    def __init__(self, folder: CloudFolder, run: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.run_folder = folder, run
        self.waiting: dict[str, Path] = {}  # the newest file of each name
        # Step of the newest uploaded file of each name.
        self.uploaded: dict[str, int] = {}
        self.is_busy, self.error = False, ""
        self.changed = threading.Condition()

    def offer(self, path: Path) -> None:
        snapshot = path.parent / ".uploads" / f"{time.time_ns()}-{path.name}"
        snapshot.parent.mkdir(exist_ok=True)
        add_name(path, snapshot)
        with self.changed:
            if older := self.waiting.pop(path.name, None):
                older.unlink(missing_ok=True)
            self.waiting[path.name] = snapshot
            self.changed.notify_all()

    def run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting)
                # The oldest: otherwise a frequent last.ckpt would keep best.ckpt waiting.
                name = next(iter(self.waiting))
                snapshot = self.waiting.pop(name)
                self.is_busy = True
            try:
                step = upload_checkpoint(self.folder, self.run_folder, snapshot, name)
                self.uploaded[name], self.error = step, ""
            except Exception as error:  # whatever it is, the training goes on
                self.error = str(error) or repr(error)
            with self.changed:
                if self.error and name not in self.waiting:
                    self.waiting[name] = snapshot  # again, unless a newer one waits
                else:
                    snapshot.unlink(missing_ok=True)
                self.is_busy = False
                self.changed.notify_all()
                # After an error a pause, which a newer file ends.
                self.changed.wait(PAUSE if self.error else 0)

    def flush(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait_for(
                lambda: not self.waiting and not self.is_busy, seconds
            )


class CloudUploadCallback(Callback):
    """Uploads a run's checkpoints from rank 0, in the background, and says what has arrived.

    Args:
        cloud_storage_path: folder of all runs, such as s3://bucket/checkpoints; null follows the
            variable CLOUD_STORAGE_PATH, and else takes s3://embedded/checkpoints; none uploads
            nothing. Keys come from the environment.
        local_dir: where the checkpoints are; null takes the run's own folder.
        upload_interval: epochs between two uploads.
        upload_during_training: upload while the training goes on, and not only at its end.
        upload_on_fit_end: upload the last ones at the end, and wait for them.
        filesystem: protocol of a cloud_storage_path that has none.
        upload_every_n_steps: upload inside an epoch too; 0 means at its end only.
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
        self.path, self.local_dir = (
            storage_path(cloud_storage_path, filesystem),
            local_dir,
        )
        self.is_path_given = bool(
            cloud_storage_path or os.environ.get("CLOUD_STORAGE_PATH")
        )
        self.interval, self.every, self.run_name = (
            upload_interval,
            upload_every_n_steps,
            run_name,
        )
        self.during_training, self.on_end = upload_during_training, upload_on_fit_end
        self.uploader: Any = None  # on rank 0
        # When each file was written, at its last offer.
        self.offered: dict[str, int] = {}

    # In each checkpoint, so that a run goes on uploading to the same folder, also where its name or
    # the variable of its path is not given again.
    def state_dict(self) -> dict[str, Any]:
        return {"run_name": self.run_name, "path": self.path}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run_name = self.run_name or state["run_name"]
        self.path = self.path if self.is_path_given else state.get("path", self.path)

    # Not in on_train_start, which Lightning skips if nothing is left to train: what an outage has
    # kept out of the cloud is then uploaded by the same command.
    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.path:
            self.open(Path(trainer.default_root_dir))

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.epoch, self.step = trainer.current_epoch, trainer.global_step

    @rank_zero_only
    def open(self, run: Path) -> None:
        # With a random suffix: run_1 of another machine must not share the folder.
        self.run_name = self.run_name or f"{run.name}-{secrets.token_hex(4)}"
        self.checkpoints = (
            Path(self.local_dir) if self.local_dir else run / "checkpoints"
        )
        # Of a killed process.
        shutil.rmtree(self.checkpoints / ".uploads", ignore_errors=True)
        folder = CloudFolder(f"{self.path}/{self.run_name}")
        folder.probe()  # a missing right is found now, and not after an hour
        note = (
            " (a server on this disk, so no backup)"
            if f"//{BUCKET}/" in folder.url
            else ""
        )
        print(f"cloud     {folder.url}{note}", flush=True)
        self.uploader = Uploader(folder, run)
        self.uploader.start()

    def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
        # Not in on_train_batch_end: ModelCheckpoint writes after all other callbacks.
        epochs, steps = (
            trainer.current_epoch - self.epoch,
            trainer.global_step - self.step,
        )
        is_due = epochs >= self.interval or 0 < self.every <= steps
        if self.uploader and self.during_training and is_due:
            self.offer_new()
            self.epoch, self.step = trainer.current_epoch, trainer.global_step

    def offer_new(self) -> None:
        for path in sorted(self.checkpoints.glob("*.ckpt")):
            written = path.stat().st_mtime_ns
            if (
                not path.stem.endswith(".previous")
                and self.offered.get(path.name) != written
            ):
                with suppress(OSError):
                    # No room for the copy: again at the next upload.
                    self.uploader.offer(path)
                    self.offered[path.name] = written

    def on_fit_end(self, *_: object) -> None:
        if missing := self.finish(PATIENCE):
            raise UserError(f"not in the cloud: {', '.join(missing)}")

    def on_exception(
        self, trainer: L.Trainer, module: object, error: BaseException
    ) -> None:
        if isinstance(error, SystemExit) and error.code == 0:
            # max_steps: a complete training.
            self.on_fit_end()
        else:
            self.finish(PATIENCE_ON_ERROR)

    # Upload what is new, wait for it, print what has arrived; returns what has not.
    def finish(self, seconds: float) -> list[str]:
        if self.uploader is None:
            return []
        uploader, missing = self.uploader, []
        if self.on_end:
            self.offer_new()
            uploader.flush(seconds)
        self.uploader = None
        if self.on_end and not self.offered:
            missing.append(f"any checkpoint of {self.checkpoints}")
        for name in sorted(self.offered):
            step = read_step(self.checkpoints / name)
            is_uploaded = uploader.uploaded.get(name, -1) == step
            missing += [name] if self.on_end and not is_uploaded else []
            state = (
                "uploaded"
                if is_uploaded
                else f"NOT UPLOADED ({uploader.error or 'too slow'})"
            )
            print(f"cloud     {name} of step {step}: {state}", flush=True)
        return missing
