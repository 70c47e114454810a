"""Where a training begins: with nothing, or from a checkpoint on the disk or in the cloud."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_only

from src.run.cloud import CLOUD_ERRORS, CloudRun, storage_path
from src.run.config import CHAPTER, parse_config
from src.run.errors import UserError

# A killed process' workers notice within five seconds that it has gone; until then they share its
# lock.
SECONDS_FOR_LOCK = 10


@dataclass
class ResumePoint:
    """What a training begins with.

    Args:
        config: the settings.
        settings: the same as YAML.
        folder: the run's; None for a new run without a name.
        checkpoint: what the run goes on from; None if it begins.
        lock: of the folder, for as long as this object lives.
    """

    config: Namespace
    settings: str
    folder: Path | None = None
    checkpoint: Path | None = None
    lock: FileLock | None = None


def find_resume_point(description: str, classes: tuple[type, ...]) -> ResumePoint:
    """Read the command line, and find the checkpoint that it goes on from.

    --trainer.run_name NAME    the newer one of the disk and the cloud; without any, begin
    --resume s3://PATH/NAME    the same, and there has to be one
    --resume FOLDER            the disk's

    Raises:
        UserError: the settings are wrong, another process trains this run, or there is no
            checkpoint where there should be one.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--resume", default="")
    options, arguments = early.parse_known_args(sys.argv[1:])
    resume = options.resume.rstrip("/")
    if resume and "://" not in resume:
        folder = Path(resume).resolve()  # ModelCheckpoint compares paths
        if not folder.is_dir():
            raise UserError(f"--resume: {folder} is no folder")
        url = ""
    else:
        if resume:
            path, _, name = resume.rpartition("/")
            arguments.append(f"--trainer.cloud_storage_path={path}")
            arguments.append(f"--trainer.run_name={name}")
        config, settings = parse_config(description, classes, arguments)
        name = config.trainer.run_name
        if not name:
            return ResumePoint(config, settings)
        folder = (CHAPTER / config.trainer.output_dir / name).resolve()
        path = storage_path(config.trainer.cloud_storage_path)
        url = f"{path}/{name}" if path else ""

    lock = lock_folder(folder)
    checkpoint = find_checkpoint(folder, url)
    if resume and not checkpoint:
        raise UserError(f"--resume: {resume} has no checkpoint")
    config, settings = parse_config(description, classes, arguments, checkpoint)
    return ResumePoint(config, settings, folder, checkpoint, lock)


def lock_folder(folder: Path) -> FileLock | None:
    """Keep a run's folder for rank 0. Raises UserError if another process has it."""
    if rank_zero_only.rank != 0:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    # The operating system takes this one back, however the process ends. A soft one is a file,
    # which would outlive a kill.
    lock = FileLock(folder / "lock", fallback_to_soft=False)
    try:
        lock.acquire(timeout=SECONDS_FOR_LOCK)
    except Timeout as error:
        raise UserError(f"{folder}: another process trains this run") from error
    return lock


def find_checkpoint(folder: Path, url: str) -> Path | None:
    """The newer one of the disk's last.ckpt and the cloud's, which is downloaded.

    Args:
        folder: the run's.
        url: the run's in the cloud; empty for none.

    Returns:
        None: neither has one, and the cloud has said so.

    Raises:
        UserError: the disk has none, and the cloud gives no answer, or nothing that is whole.
    """
    best = folder / "checkpoints/best.ckpt"
    last = folder / "checkpoints/last.ckpt"
    objects = []
    if url:
        last.parent.mkdir(parents=True, exist_ok=True)
        try:
            run = CloudRun(url)
            # Outside of the lock, so that all ranks wait for a silent cloud together.
            objects = run.objects("last")
            # One rank of each machine downloads, and the others find the file.
            with FileLock(folder / "download.lock"):
                run.download_newer(run.objects("best"), best)
                run.download_newer(objects, last)
        except CLOUD_ERRORS as error:
            if not last.exists():
                # Starting from scratch would ignore the checkpoints that may be there.
                raise UserError(f"{url} gives no answer: {error}") from error
            print(f"resume    from the disk; {url}: {error}", flush=True)
    if last.exists():
        return last
    if objects:
        raise UserError(f"{url} has no checkpoint that is whole")
    return None
