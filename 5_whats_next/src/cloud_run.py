"""A run's copy in object storage: what is uploaded, what counts, what is downloaded."""

# PATH/RUN/last-000000120-1a2b3c4d.ckpt   a checkpoint: its step, the beginning of its SHA-256
# PATH/RUN/latest.json                    the checkpoints that count, and whose run it is
# PATH/RUN/config.yaml, metrics.csv       what belongs to them
#
# The order of an upload: the checkpoint, under a name that has its hash, compared with the file;
# then latest.json names it; then older ones are deleted. Wherever that is cut off, latest.json
# names whole objects only.

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from src.checkpoint_files import is_intact
from src.cloud_folder import TIMEOUT, CloudFolder, DamagedError, digest
from src.errors import UserError

KEEP = 2  # checkpoints of each name
OBJECT = re.compile(r"(.+)-(\d{9,})-([0-9a-f]{8})\.ckpt")  # what upload calls them
FIND_TIMEOUT = 7.0  # seconds at a start: a wrong address is found soon


class TakenOverError(UserError):
    """Another process goes on with the run."""


class DamagedFileError(UserError):
    """A checkpoint on this disk is damaged: another attempt to upload it cannot help."""


class CloudRun:
    """One run in object storage, and its folder on the disk."""

    def __init__(self, url: str, run: Path) -> None:
        self.folder = CloudFolder(url)
        self.run = run
        self.owner = ""  # until claim

    def read_list(self, seconds: float = TIMEOUT) -> tuple[str, list[dict[str, Any]]]:
        """The owner; name, object, step, sha256 and size of each checkpoint, the newest first."""
        text = self.folder.read("latest.json", seconds)
        if not text:
            return "", self.entries_of_objects()
        try:
            latest = json.loads(text)
        except ValueError as error:
            raise UserError(f"{self.folder.url}/latest.json is damaged") from error
        entries = sorted(latest["checkpoints"], key=lambda entry: -entry["step"])
        for name in [entry[key] for entry in entries for key in ("name", "object")]:
            # Somebody else may have written it: "../../.bashrc" would leave the run's folder.
            if name != Path(name).name or not name.endswith(".ckpt"):
                raise UserError(
                    f"{self.folder.url}/latest.json: {name!r} is no checkpoint's name"
                )
        return latest["owner"], entries

    def entries_of_objects(self) -> list[dict[str, Any]]:
        """The entries of a list that was lost, from the objects' names; none for a new run.

        The embedded server once lost one in a campaign of kills, probably while it was replaced.
        The run then began again at step 0, beside its own checkpoints.
        """
        entries = []
        for key in self.folder.names():
            if match := OBJECT.fullmatch(key):
                stem, step, sha256 = match.groups()
                entry = {"name": f"{stem}.ckpt", "object": key, "step": int(step)}
                # The beginning of its digest; enough to compare a download with.
                entries.append(
                    entry | {"sha256": sha256, "size": self.folder.size(key)}
                )
        return sorted(entries, key=lambda entry: -entry["step"])

    def write_list(self, entries: list[dict[str, Any]], only_over: str = "") -> None:
        """Replace latest.json."""
        latest = {"owner": self.owner, "checkpoints": entries}
        text = json.dumps(latest, indent=1)
        try:
            self.folder.write("latest.json", text, only_over)
        except UserError:
            # An answer may be lost. Then it is written, and the retry's condition does not hold.
            if self.folder.read("latest.json") != text:
                raise

    def claim(self) -> None:
        """From now on this process uploads the run; another one that did so has to end."""
        self.owner = secrets.token_hex(8)
        while True:
            # The version first: if the other one changes the list after it was read, try again.
            version = self.folder.version("latest.json")
            previous_owner, entries = self.read_list()
            try:
                self.write_list(entries, only_over=version)
                break
            except UserError:
                if self.folder.version("latest.json") == version:
                    raise
        if previous_owner:
            # Nothing depends on it: what stays now goes at the next claim.
            with suppress(UserError):
                self.delete_unlisted()

    def delete_unlisted(self) -> None:
        """Delete objects that no list names: uploads that were killed."""
        # In this order, an object of a process that has taken over meanwhile is left alone.
        names = self.folder.names()
        listed = {entry["object"] for entry in self.check_owner()}
        for name in names:
            # Under another name, somebody has put it there.
            if OBJECT.fullmatch(name) and name not in listed:
                self.folder.delete(name)

    def check_owner(self) -> list[dict[str, Any]]:
        """The entries of latest.json. Raises TakenOverError if it is another one's."""
        owner, entries = self.read_list()
        if owner and owner != self.owner:  # a lost list is nobody's
            raise TakenOverError(f"{self.folder.url}: another process has taken over")
        return entries

    def upload(self, path: Path, name: str, step: int) -> None:
        """Upload the checkpoint ``path`` as ``name``, and what belongs to it."""
        if not is_intact(path):
            raise DamagedFileError(f"{name} is damaged on this disk")
        self.check_owner()
        sha256 = digest(path)
        key = f"{Path(name).stem}-{step:09d}-{sha256[:8]}.ckpt"
        self.folder.upload(path, key, sha256)
        self.check_owner()  # again: this may have taken minutes
        # metrics.csv may have rows after the checkpoint: a resume drops them.
        for filename in ("config.yaml", "metrics.csv"):
            if (self.run / filename).is_file():
                self.folder.write(filename, (self.run / filename).read_text())

        # The version first: if somebody changes the list after it was read, the write is refused.
        version = self.folder.version("latest.json")
        listed = [entry for entry in self.check_owner() if entry["object"] != key]
        entry = {"name": name, "object": key, "step": step, "sha256": sha256}
        entry["size"] = path.stat().st_size
        same_name = [old for old in listed if old["name"] == name]  # the newest first
        outdated = same_name[KEEP - 1 :]
        others = [old for old in listed if old not in outdated]
        try:
            self.write_list([entry, *others], only_over=version)
        except UserError:
            self.check_owner()
            raise
        for old in outdated:
            self.folder.delete(old["object"])

    def newer_than(self, step: int) -> list[dict[str, Any]]:
        """The entries with more steps."""
        _, entries = self.read_list(FIND_TIMEOUT)
        return [entry for entry in entries if entry["step"] > step]

    def download_newer_than(self, step: int) -> bool:
        """Download each name's newest intact checkpoint, if it has more steps or is not here.

        Returns whether one had more steps.
        """
        _, entries = self.read_list(FIND_TIMEOUT)
        has_newer = any(entry["step"] > step for entry in entries)
        # These first: once a checkpoint has its name, the next start takes the disk for complete.
        if has_newer:
            self.run.mkdir(parents=True, exist_ok=True)
            for filename in ("config.yaml", "metrics.csv"):
                if text := self.folder.read(filename):
                    write_whole(self.run / filename, text)
        names = {entry["name"] for entry in entries}
        is_here = [self.download_name(name, entries, step) for name in sorted(names)]
        if entries and not any(is_here) and not step:
            raise UserError(f"{self.folder.url} has no checkpoint that is intact")
        return has_newer

    def download_name(
        self, name: str, entries: list[dict[str, Any]], step: int
    ) -> bool:
        """Download the newest intact checkpoint of a name; returns whether there is one here."""
        path = self.run / "checkpoints" / name
        for entry in entries:
            if entry["name"] != name:
                continue
            if entry["step"] <= step and path.exists():
                return True
            try:
                self.folder.download(
                    entry["object"], path, entry["sha256"], entry["size"]
                )
                print(f"resume    downloaded {entry['object']}", flush=True)
                return True
            except (
                DamagedError
            ) as error:  # not an outage, in which a newer one would be lost
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
