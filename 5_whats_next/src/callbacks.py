"""Checkpoints that are already in the cloud when the machine is gone."""

import os
import secrets
import shutil
import sys
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback

from src.checkpoint_files import find
from src.cloud_folder import CloudFolder, FileSystem, full_url
from src.cloud_run import CloudRun, Copy, note_run, noted_run, read_copies, run_url
from src.data.cloud_errors import CloudError, may_pass
from src.data.s3_server import BUCKET
from src.errors import UserError
from src.lightning_ranks import is_rank_zero, shared_fate
from src.uploader import Uploader

PROBE = 7.0  # seconds for each request of the check at the start


class CloudUploadCallback(Callback):
    """Uploads a run's checkpoints from rank 0, in the background, and says what has arrived.

    A failing cloud neither stops the training nor slows it down. What counts is in ``latest.json``
    (see ``src/cloud_run.py``); ``--resume`` takes the address of the run, and goes on from there.

    Args:
        cloud_storage_path: folder for the runs, such as s3://bucket/checkpoints; each run has a
            folder of its own in it. Credentials come from the environment (.env.example). null
            follows the variable CLOUD_STORAGE_PATH, and else takes s3://embedded/checkpoints;
            none uploads nothing.
        local_dir: where the checkpoints are; null means the run's own folder.
        upload_interval: epochs between two uploads.
        upload_during_training: upload while the training goes on, not only at its end.
        upload_on_fit_end: upload the last ones at the end, and wait for them.
        filesystem: of cloud_storage_path: s3, gcs, abfs (each needs its fsspec package), local.
        upload_every_n_steps: upload inside an epoch too, whenever there is a newer checkpoint and
            so many steps have passed; 0 means by epochs only.
        keep: checkpoints of each name that stay in the cloud.
        deadline: seconds for one upload with all its attempts; then the newest is tried.
        flush_timeout: seconds to wait at the end.
        run_name: the run's folder in the cloud; null makes up one that no other run has.

    Raises:
        UserError: before the training starts: the storage cannot be written, or belongs to
            another run.
    """

    def __init__(
        self,
        cloud_storage_path: str | None = None,
        local_dir: str | None = None,
        upload_interval: int = 1,
        upload_during_training: bool = True,
        upload_on_fit_end: bool = True,
        filesystem: FileSystem = "s3",
        upload_every_n_steps: int = 0,
        keep: int = 2,
        deadline: float = 600.0,
        flush_timeout: float = 60.0,
        run_name: str | None = None,
    ) -> None:
        numbers = {"upload_interval": upload_interval, "keep": keep, "deadline": deadline}
        for name, value in numbers.items():
            if value < 1:
                raise UserError(f"{name}: {value} is too small; allowed: from 1")
        if upload_every_n_steps < 0 or flush_timeout < 0:
            raise UserError("upload_every_n_steps and flush_timeout: allowed: from 0")
        self.path = storage_path(cloud_storage_path)
        if self.path:
            self.path = full_url(self.path, filesystem)
        self.filesystem, self.local_dir, self.run_name = filesystem, local_dir, run_name
        self.interval, self.every = upload_interval, upload_every_n_steps
        self.during, self.at_end = upload_during_training, upload_on_fit_end
        self.keep, self.deadline, self.flush_timeout = keep, deadline, flush_timeout
        self.uploader: Uploader | None = None
        self.begun = False
        self.known: dict[str, tuple[int, int, int]] = {}  # inode, time and size of what was offered
        self.epoch = self.step = 0  # of the last upload
        self.missing: list[str] = []  # checkpoints that are not in the cloud at the end

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Look whether the storage can be written, before an hour of training finds out."""
        if stage != "fit" or not self.path:
            return
        run = Path(trainer.log_dir or trainer.default_root_dir)  # the same on all ranks
        with shared_fate():
            if is_rank_zero() and self.uploader is None:
                self.open(run)

    def open(self, run: Path) -> None:
        """Probe the storage, claim the run's folder there, start the thread."""
        self.checkpoints = Path(self.local_dir) if self.local_dir else run / "checkpoints"
        shutil.rmtree(self.checkpoints / ".uploads", ignore_errors=True)  # of a killed process
        run_id, url = noted_run(self.checkpoints, run.name)
        noted, run_id = bool(run_id), run_id or secrets.token_hex(8)
        if not url.startswith(f"{self.path}/"):
            url = run_url(self.path, self.run_name or f"{run.name}-{run_id[:8]}")
        folder = CloudFolder(url, self.filesystem)
        copy = CloudRun(folder, run_id, self.keep)
        done: list[Copy] = []
        try:
            folder.probe(f"probe-{copy.session}", PROBE)
            copy.claim()
            copy.sweep()
            done = read_copies(folder)
            print(f"cloud     {url}", flush=True)
        except CloudError as error:
            # A run that goes on is not held up by an outage; a new one should have a place to go.
            if not (noted and error.__cause__ and may_pass(error.__cause__)):
                raise
            print(f"cloud     cannot be reached, and is tried again later ({error})", flush=True)
        self.uploader = Uploader(copy, run, self.deadline)
        self.uploader.done = done

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begun = True
        self.epoch, self.step = trainer.current_epoch, trainer.global_step
        if self.uploader:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            copy = self.uploader.run
            note_run(self.checkpoints, copy.folder.url, copy.run_id, self.uploader.beside.name)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object
    ) -> None:
        """Here and not where the last step ended: checkpoints are saved after all other hooks."""
        if not self.during or self.uploader is None:
            return
        steps = trainer.global_step - self.step
        due = trainer.current_epoch - self.epoch >= self.interval or 0 < self.every <= steps
        if due and self.offer_new(trainer):
            self.epoch, self.step = trainer.current_epoch, trainer.global_step

    def offer_new(self, trainer: L.Trainer) -> bool:
        """Hand over the checkpoints that are new since the last time; whether there were any."""
        assert self.uploader
        found = False
        for path in sorted(self.checkpoints.glob("*.ckpt")):
            status = path.stat()
            state = (status.st_ino, status.st_mtime_ns, status.st_size)
            if path.stem.endswith(".previous") or self.known.get(path.name) == state:
                continue
            self.uploader.offer(path, trainer.global_step)
            self.known[path.name], found = state, True
        return found

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.uploader:
            self.finish(trainer, self.flush_timeout if self.at_end else 0.0)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Bring what is there into safety: the machine may be gone in a moment."""
        if self.uploader is None:
            return
        if self.begun:
            self.finish(trainer, min(self.flush_timeout, 20.0))
        else:
            self.uploader.close()

    def finish(self, trainer: L.Trainer, seconds: float) -> None:
        """Upload what is new, wait for it, say what is where."""
        uploader = self.uploader
        assert uploader
        if seconds:
            self.offer_new(trainer)
            if not uploader.flush(min(2.0, seconds)):
                print(f"cloud     waiting up to {seconds:.0f} s for the last upload", flush=True)
                uploader.flush(seconds - 2.0)
        self.report(uploader, trainer)
        uploader.close()
        self.uploader = None

    def report(self, uploader: Uploader, trainer: L.Trainer) -> None:
        """A line for each checkpoint: in the cloud, or why not."""
        self.missing = []
        if not any(self.checkpoints.glob("*.ckpt")):
            self.missing.append("any checkpoint")
            print(f"cloud     there is no checkpoint in {self.checkpoints}: is local_dir right?")
        for path in sorted(self.checkpoints.glob("*.ckpt")):
            if path.stem.endswith(".previous"):
                continue
            entry, there = find(path), uploader.newest(path.name)
            step = entry.step if entry else trainer.global_step
            if there and there.step >= step:
                print(f"cloud     {path.name} of step {step} is there")
            else:
                self.missing.append(path.name)
                older = f"; the newest there is of step {there.step}" if there else ""
                why = f" ({uploader.problem})" if uploader.problem else ""
                print(f"cloud     {path.name} of step {step} is NOT there{why}{older}")
        if uploader.failures or uploader.superseded:
            print(
                f"cloud     {uploader.failures} uploads failed and were tried again, "
                f"{uploader.superseded} gave way to newer checkpoints"
            )
        sys.stdout.flush()


def storage_path(configured: str | None) -> str:
    """The configured path, else CLOUD_STORAGE_PATH, else the server that starts by itself.

    Empty if nothing shall be uploaded.
    """
    path = configured or os.environ.get("CLOUD_STORAGE_PATH") or f"s3://{BUCKET}/checkpoints"
    return "" if path == "none" else path


def left_behind(trainer: L.Trainer) -> int:
    """1 if the final checkpoint is not where an upload callback should have put it, else 0."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, CloudUploadCallback) and callback.at_end and callback.missing:
            names = ", ".join(callback.missing)
            print(
                f"error: not in the cloud: {names}; on this disk: {callback.checkpoints}",
                file=sys.stderr,
            )
            return 1
    return 0
