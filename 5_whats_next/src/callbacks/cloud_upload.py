"""Checkpoints that are in the cloud already when the machine is gone."""

import os
import secrets
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from src.callbacks.stop_and_save import StopAndSave
from src.data.s3_server import BUCKET
from src.run import preemption
from src.run.checkpoint_files import recorded_step
from src.run.cloud_run import CloudRun
from src.run.errors import UserError
from src.run.preemption import StoppedBySignal
from src.run.uploader import Uploader

# Seconds for the last uploads: at the end of a training; and at an error, when the machine may be
# gone in a moment. After a signal they get what the signal leaves.
UPLOAD_SECONDS, UPLOAD_SECONDS_ON_ERROR = 600.0, 15.0
TAKEN_OVER = 4  # exit code where another process has taken over the run


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
        self.path = storage_path(cloud_storage_path, filesystem)
        self.is_path_given = bool(
            cloud_storage_path or os.environ.get("CLOUD_STORAGE_PATH")
        )
        self.local_dir = local_dir
        self.interval = upload_interval
        self.every = upload_every_n_steps
        self.run_name = run_name
        self.during_training = upload_during_training
        self.on_end = upload_on_fit_end
        self.uploader: Any = None  # on rank 0
        # Optimiser steps of the checkpoint that the training goes on from.
        self.start_step = 0
        # When each file had been written, as it was enqueued last.
        self.enqueued: dict[str, int] = {}
        # None makes an upload due at once, of what an earlier process has left: otherwise jobs
        # that are shorter than the interval would never upload.
        self.last_period: tuple[int, int] | None = None

    def state_dict(self) -> dict[str, Any]:
        """What Lightning puts into each checkpoint.

        So a resume needs neither the run's name nor CLOUD_STORAGE_PATH again.
        """
        return {"run_name": self.run_name, "path": self.path}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What a checkpoint has; a path that is given now wins."""
        self.run_name = self.run_name or state["run_name"]
        self.path = self.path if self.is_path_given else state.get("path", self.path)

    def on_load_checkpoint(
        self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Remember where the training goes on; ``trainer.global_step`` comes later."""
        self.start_step = checkpoint["global_step"]

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Begin to upload."""
        for callback in trainer.callbacks:
            if self.path and isinstance(callback, StopAndSave):
                # What is uploaded has to be saved before.
                callback.every = callback.every or self.every
        # Not in on_train_start, which Lightning skips if nothing is left to train: what an outage
        # has kept out of the cloud is then uploaded by the same command.
        if self.path:
            self.open(Path(trainer.default_root_dir))
        elif trainer.is_global_zero:
            print("cloud     none: nothing is uploaded", flush=True)

    @rank_zero_only
    def open(self, run: Path) -> None:
        """Make sure that the cloud can be used, and start the thread."""
        # With a random suffix: run_1 of another machine must not share the folder.
        self.run_name = self.run_name or f"{run.name}-{secrets.token_hex(4)}"
        self.checkpoints = (
            Path(self.local_dir) if self.local_dir else run / "checkpoints"
        )
        # Copies that a killed process has left.
        shutil.rmtree(self.checkpoints / ".uploads", ignore_errors=True)
        cloud = CloudRun(f"{self.path}/{self.run_name}", run)
        try:
            cloud.folder.probe()  # a missing right is found now, and not after an hour
            cloud.claim()
            if cloud.is_ahead(self.start_step):
                text = f"is ahead of step {self.start_step}: a start goes on from there"
                print(f"cloud     {text}, until this run has passed it", flush=True)
        except UserError as error:
            # An outage does not stop a run that goes on from the disk: the first upload claims it.
            if isinstance(error.__cause__, PermissionError) or not self.files():
                raise
            print(f"cloud     not yet: {error}", flush=True)
        is_here = f"//{BUCKET}/" in self.path
        note = " (a server on this disk, so no backup)" if is_here else ""
        print(f"cloud     {cloud.folder.url}{note}", flush=True)
        self.uploader = Uploader(cloud)
        self.uploader.start()

    def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
        """Enqueue new checkpoints, every so many epochs or steps."""
        if self.uploader is None:
            return
        if self.uploader.is_taken_over():
            sys.exit(TAKEN_OVER)  # on_exception says why
        # Lightning logs after the step, when global_step is one more.
        if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            # For a dashboard: it grows while uploads fail.
            uploaded = max(self.uploader.uploaded.values(), default=self.start_step)
            age = float(trainer.global_step - uploaded)
            self.log("train_upload_age_steps", age, rank_zero_only=True)
        # Not in on_train_batch_end: ModelCheckpoint writes after all other callbacks.
        steps = trainer.global_step // self.every if self.every else 0
        period = (trainer.current_epoch // self.interval, steps)
        if self.during_training and period != self.last_period:
            self.enqueue_new()
            self.last_period = period

    def files(self) -> list[Path]:
        """The checkpoints on the disk, without those that were replaced."""
        paths = sorted(self.checkpoints.glob("*.ckpt"))
        return [path for path in paths if not path.stem.endswith(".previous")]

    def enqueue_new(self) -> None:
        """Enqueue the checkpoints that have been written since the last time."""
        for path in self.files():
            # A file that is gone, or without room for its copy, is tried at the next upload.
            with suppress(OSError):
                written = path.stat().st_mtime_ns
                if self.enqueued.get(path.name) != written:
                    self.uploader.enqueue(path)
                    self.enqueued[path.name] = written

    def on_fit_end(self, *_: object) -> None:
        """Wait for the last uploads. Raises UserError if something is not in the cloud."""
        missing = self.finish(UPLOAD_SECONDS)
        if missing:
            raise UserError(f"not in the cloud: {', '.join(missing)}")

    def on_exception(
        self, trainer: L.Trainer, module: object, error: BaseException
    ) -> None:
        """Wait for the last uploads, as long as the reason of the end allows."""
        if isinstance(error, SystemExit) and error.code == 0:
            self.on_fit_end()  # max_steps: a complete training
            return
        try:
            self.finish(seconds_for_uploads(error))
        except SystemExit:
            # Taken over. Lightning raises the training's own error again, which says more.
            if isinstance(error, SystemExit):
                raise

    def finish(self, seconds: float) -> list[str]:
        """Upload what is new, wait for it, and end the thread; returns what is not in the cloud.

        Ends the program with TAKEN_OVER if another process goes on with the run.
        """
        uploader = self.uploader
        if uploader is None:
            return []
        if self.on_end and not uploader.is_taken_over():
            self.enqueue_new()
            uploader.flush(seconds)
        self.uploader = None  # a signal may end the wait, and then this begins again
        uploader.close()
        missing = self.report_uploads(uploader)
        if uploader.is_taken_over():
            # Also after a signal: with 143 a job would be queued again, and take the run back.
            print(f"cloud     {uploader.error}", flush=True)
            sys.exit(TAKEN_OVER)
        return missing

    def report_uploads(self, uploader: Uploader) -> list[str]:
        """Print what has arrived; returns the names of what should have, and has not."""
        missing = []
        # Of the disk: what could not be enqueued, for want of room, is among them.
        files = self.files()
        if not files:
            missing.append(f"any checkpoint of {self.checkpoints}")
        for path in files:
            # After a signal there is no time to read gigabytes.
            step = recorded_step(path)
            state = "uploaded"
            if step is None or uploader.uploaded.get(path.name) != step:
                reason = uploader.refused.get(path.name) or uploader.error or "too slow"
                state = f"NOT UPLOADED ({reason})"
                missing.append(path.name)
            print(f"cloud     {path.name} of step {step}: {state}", flush=True)
        return missing if self.on_end else []


def seconds_for_uploads(error: BaseException) -> float:
    """How long the last uploads may take, by the reason of the end."""
    if isinstance(error, StoppedBySignal):
        return error.seconds_left()
    if isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM:
        # During the last uploads, when StopAndSave has given the signals back.
        return preemption.SECONDS_AFTER_SIGTERM - preemption.RESERVE
    return UPLOAD_SECONDS_ON_ERROR
