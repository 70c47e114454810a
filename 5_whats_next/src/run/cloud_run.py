"""A run's copy in object storage: what is uploaded, what counts, what is downloaded."""

# PATH/RUN/last-000000120-1a2b3c4d.ckpt          a checkpoint: step, beginning of its SHA-256
# PATH/RUN/last-000000120-1a2b3c4d.config.yaml   the settings, and the curve up to this step
# PATH/RUN/last-000000120-1a2b3c4d.metrics.csv
# PATH/RUN/owner                                 a random number of the process that uploads
#
# The objects' names are the list: storage shows an object when it is whole, and never half of one.
# An upload writes what belongs to a checkpoint, then the checkpoint, then deletes older ones. The
# name of a finished upload is written again only by a start, and only where the store's checksum is
# not ours: a kill meanwhile may lose the old object (in SeaweedFS it does).

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from src.run.checkpoint_files import is_intact
from src.run.cloud_folder import CloudFolder, DamagedError, digest
from src.run.errors import UserError

BESIDE = ("config.yaml", "metrics.csv")  # what belongs to a checkpoint
# What upload calls its objects; those with other names are left alone.
OBJECT = re.compile(r"(.+)-(\d{9,})-([0-9a-f]{8})\.(ckpt|config\.yaml|metrics\.csv)")


class TakenOverError(UserError):
    """Another process goes on with the run."""


class DamagedFileError(UserError):
    """A checkpoint on this disk is damaged: another attempt to upload it cannot help."""


@dataclass
class Copy:
    """A checkpoint in the cloud.

    Args:
        key: its object's name.
        name: its name on the disk.
        step: its optimiser steps.
        sha256: the beginning of its digest.
        size: its bytes.
    """

    key: str
    name: str
    step: int
    sha256: str
    size: int


class CloudRun:
    """One run in object storage, and its folder on the disk."""

    def __init__(self, url: str, run: Path) -> None:
        self.folder = CloudFolder(url)
        self.run = run
        self.owner = ""  # until claim

    def copies(self) -> list[Copy]:
        """The run's checkpoints, the newest first."""
        found = []
        for key, size in self.folder.sizes().items():
            match = OBJECT.fullmatch(key)
            if match and match[4] == "ckpt":
                stem, step, sha256, _ = match.groups()
                found.append(Copy(key, f"{stem}.ckpt", int(step), sha256, size))
        return sorted(found, key=lambda copy: -copy.step)

    def read_beside(self, copy: Copy, filename: str) -> str:
        """The config.yaml or metrics.csv of a checkpoint; empty if there is none."""
        name = f"{copy.key.removesuffix('.ckpt')}.{filename}"
        # Earlier versions had one of each for the whole run.
        return self.folder.read(name) or self.folder.read(filename)

    def is_ahead(self, step: int) -> bool:
        """Whether the cloud has a later step, with which a start would go on."""
        return any(copy.step > step for copy in self.copies())

    def claim(self) -> None:
        """From now on this process uploads the run; another one that did so has to end."""
        owner = secrets.token_hex(8)
        self.folder.write("owner", owner)
        self.owner = owner

    def check_owner(self) -> None:
        """Raise TakenOverError if another process has claimed the run."""
        # "": the object was lost, so nobody else has written it.
        if self.folder.read("owner") not in ("", self.owner):
            raise TakenOverError(f"{self.folder.url}: another process has taken over")

    def upload(self, path: Path, name: str, step: int) -> None:
        """Upload the checkpoint ``path`` as ``name``, and what belongs to it."""
        if not self.owner:  # there was an outage at the start
            # Another process may train it. This one waits until it has more steps.
            if self.is_ahead(step):
                raise UserError(f"{self.folder.url} is ahead of step {step}")
            self.claim()
        self.check_owner()
        copies = self.copies()
        if not is_intact(path):
            raise DamagedFileError(f"{name} is damaged on this disk")
        sha256 = digest(path)
        stem = f"{Path(name).stem}-{step:09d}-{sha256[:8]}"
        is_new = f"{stem}.ckpt" not in {copy.key for copy in copies}
        # Before the checkpoint: a resume can drop later rows, but not add missing ones.
        for filename in BESIDE:
            if is_new and (self.run / filename).is_file():
                text = (self.run / filename).read_text()
                self.folder.write(f"{stem}.{filename}", text)
        self.folder.upload(path, f"{stem}.ckpt", sha256)

        self.check_owner()  # again: this may have taken minutes
        # Keep this checkpoint and the one before it.
        same_name = [copy for copy in copies if copy.name == name]
        older = [copy.step for copy in same_name if copy.step < step]
        previous = max(older, default=0)
        self.delete_before(previous, name)

    def delete_before(self, step: int, name: str) -> None:
        """Delete what belongs to checkpoints of this name that have fewer steps."""
        # In this order a checkpoint goes before what belongs to it.
        for key in sorted(self.folder.sizes()):
            match = OBJECT.fullmatch(key)
            if match and f"{match[1]}.ckpt" == name and int(match[2]) < step:
                self.folder.delete(key)

    def download_newer_than(self, step: int) -> None:
        """Download each name's newest intact checkpoint, if it has more steps or is not here."""
        copies = self.copies()
        # These first: once a checkpoint has its name, the next start takes the disk for complete.
        if copies and copies[0].step > step:
            self.run.mkdir(parents=True, exist_ok=True)
            for filename in BESIDE:
                if text := self.read_beside(copies[0], filename):
                    write_whole(self.run / filename, text)
        names = sorted({copy.name for copy in copies})
        is_here = [self.download_name(name, copies, step) for name in names]
        if copies and not any(is_here) and not step:
            raise UserError(f"{self.folder.url} has no checkpoint that is intact")

    def download_name(self, name: str, copies: list[Copy], step: int) -> bool:
        """Download the newest intact checkpoint of a name; returns whether there is one here."""
        path = self.run / "checkpoints" / name
        for copy in copies:
            if copy.name != name:
                continue
            if copy.step <= step and path.exists():
                break
            try:
                self.folder.download(copy.key, path, copy.sha256, copy.size)
                print(f"resume    downloaded {copy.key}", flush=True)
                break
            # Not at an outage: an older one would be taken.
            except DamagedError as error:
                print(f"resume    skipped: {error}", flush=True)
        return path.exists()


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
