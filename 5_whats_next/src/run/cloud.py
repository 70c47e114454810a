"""A run's checkpoints in object storage: one object for each.

PATH/RUN/last-000000581-1a2b3c4d5e6f7081.ckpt

Its name has the optimiser steps and the beginning of the file's SHA-256. Storage shows an object
when it is whole, and never half of one; the hash says whether its bytes are still those that were
uploaded. Two machines that train the same run overwrite nothing of each other.
"""

import fnmatch
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from aiohttp import ClientError
from botocore.exceptions import BotoCoreError

from src.data.store import file_system, load_environment
from src.run.checkpoint import atomic_write, read_checkpoint
from src.run.errors import UserError

# What a request raises if the storage refuses, or does not answer.
CLOUD_ERRORS = (OSError, BotoCoreError, ClientError)


def storage_path(configured: str | None, filesystem: str = "s3") -> str:
    """The folder of all runs: as configured, else CLOUD_STORAGE_PATH, else a server here.

    Empty for the word none.
    """
    load_environment()
    path = configured or os.environ.get("CLOUD_STORAGE_PATH")
    path = path or "s3://embedded/checkpoints"
    if path == "none":
        return ""
    return (path if "://" in path else f"{filesystem}://{path}").rstrip("/")


class DamagedError(Exception):
    """What was downloaded is not what its name says."""


class CloudRun:
    """A run's folder in object storage. Its methods raise CLOUD_ERRORS.

    Args:
        url: such as s3://bucket/checkpoints/mine.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        # s3fs asks five times, with 20 s for each: boto's own attempts would multiply that.
        self.fs, self.path = file_system(url, attempts=1)

    def objects(self, name: str) -> list[str]:
        """The objects of the checkpoints with this name, such as last: the newest first."""
        self.fs.invalidate_cache()
        found = [path.rpartition("/")[2] for path in self.fs.find(self.path)]
        return sorted(fnmatch.filter(found, f"{name}-*-*.ckpt"), reverse=True)

    def upload(self, file: Path) -> None:
        """Upload a checkpoint; keep the one before it, and delete older ones."""
        key = f"{file.stem}-{saved_step(file):09d}-{digest(file)}.ckpt"
        self.fs.put_file(str(file), f"{self.path}/{key}")
        # Only among older steps: a run that was resumed from an older step must not delete its own
        # upload.
        older = [other for other in self.objects(file.stem) if other < key]
        for other in older[1:]:
            self.fs.rm_file(f"{self.path}/{other}")

    def download_newer(self, objects: list[str], path: Path) -> None:
        """Replace ``path`` by the first of the objects that is whole, if that has more steps."""
        step_here = -1
        with suppress(UserError):  # missing, or damaged: any whole one is better
            step_here = saved_step(path)
        for key in objects:
            _, step, hash_in_name = key.removesuffix(".ckpt").rsplit("-", 2)
            if int(step) <= step_here:
                return
            try:
                with atomic_write(path) as file:
                    self.fs.get_file(f"{self.path}/{key}", file.name)
                    if digest(Path(file.name)) != hash_in_name:
                        raise DamagedError(key)
            except DamagedError:
                print(f"resume    {key} is damaged, and is skipped", flush=True)
            else:
                print(f"resume    downloaded {key}", flush=True)
                return


def saved_step(path: Path) -> int:
    """The optimiser steps of a checkpoint of Lightning."""
    return read_checkpoint(path, mmap=True)["global_step"]


def digest(path: Path) -> str:
    """The beginning of a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
