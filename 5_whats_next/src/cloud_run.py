"""A run's copy in object storage: what is uploaded, what counts, what is downloaded."""

# PATH/RUN/last-000000120-1a2b3c4d.ckpt   a checkpoint: its step, the beginning of its SHA-256
# PATH/RUN/latest.json                    the checkpoints that count, and whose run it is
# PATH/RUN/config.yaml, metrics.csv       what belongs to them
#
# The order of an upload: the checkpoint, under a name that is never used again, compared with the
# file; then latest.json names it; then older ones are deleted. Wherever that is cut off,
# latest.json names whole objects only.

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from src.checkpoint_files import is_intact
from src.cloud_folder import TIMEOUT, CloudFolder, digest
from src.errors import UserError

KEEP = 2  # checkpoints of each name


class TakenOverError(UserError):
    """Another process goes on with the run."""


class CloudRun:
    """One run in object storage, and its folder on the disk."""

    def __init__(self, url: str, run: Path) -> None:
        self.folder = CloudFolder(url)
        self.run = run
        self.owner = ""  # until claim

    def read_list(self, seconds: float = TIMEOUT) -> tuple[str, list[dict[str, Any]]]:
        """The owner; name, object, step, sha256 and size of each checkpoint, the newest first."""
        text = self.folder.read("latest.json", seconds)
        latest = json.loads(text or '{"owner": "", "checkpoints": []}')
        entries = sorted(latest["checkpoints"], key=lambda entry: -entry["step"])
        for name in [entry[key] for entry in entries for key in ("name", "object")]:
            # Somebody else may have written it: "../../.bashrc" would leave the run's folder.
            if name != Path(name).name or not name.endswith(".ckpt"):
                raise UserError(
                    f"{self.folder.url}/latest.json: {name!r} is no checkpoint's name"
                )
        return latest["owner"], entries

    def write_list(self, entries: list[dict[str, Any]], only_over: str = "") -> None:
        """Replace latest.json."""
        latest = {"owner": self.owner, "checkpoints": entries}
        text = json.dumps(latest, indent=1)
        try:
            self.folder.write("latest.json", text, only_over)
        except UserError:
            # An answer may be lost. Then it is written, and the retry's condition does not hold.
            if self.folder.read("latest.json") != text:
                self.check_owner()
                raise

    def claim(self) -> None:
        """From now on this process uploads the run; another one that did so has to end."""
        self.owner = secrets.token_hex(8)
        _, entries = self.read_list()
        self.write_list(entries)
        # Objects that no list names: uploads that were killed.
        with suppress(UserError):  # the right to list is not needed for anything else
            listed = {entry["object"] for entry in entries}
            for name in self.folder.names():
                if name.endswith(".ckpt") and name not in listed:
                    self.folder.delete(name)

    def check_owner(self) -> list[dict[str, Any]]:
        """The entries of latest.json. Raises TakenOverError if it is another one's."""
        owner, entries = self.read_list()
        if owner != self.owner:
            raise TakenOverError(f"{self.folder.url}: another process has taken over")
        return entries

    def upload(self, path: Path, name: str, step: int) -> None:
        """Upload the checkpoint ``path`` as ``name``, and what belongs to it."""
        if not is_intact(path):
            raise UserError(f"{name} is damaged on this disk")
        self.check_owner()
        sha256 = digest(path)
        key = f"{Path(name).stem}-{step:09d}-{sha256[:8]}.ckpt"
        self.folder.upload(path, key, sha256)
        # metrics.csv may have rows after the checkpoint: a resume drops them.
        for filename in ("config.yaml", "metrics.csv"):
            if (self.run / filename).is_file():
                self.folder.write(filename, (self.run / filename).read_text())

        # The version first: if somebody changes the list after it was read, the write is refused.
        version = self.folder.version("latest.json")
        listed = [entry for entry in self.check_owner() if entry["object"] != key]
        size = path.stat().st_size
        entry = {"name": name, "object": key, "step": step, "sha256": sha256}
        outdated = [old for old in listed if old["name"] == name][KEEP - 1 :]
        kept = [old for old in listed if old not in outdated]
        self.write_list([entry | {"size": size}, *kept], only_over=version)
        for old in outdated:
            self.folder.delete(old["object"])

    def newer_than(self, step: int) -> list[dict[str, Any]]:
        """The entries with more steps."""
        # Little patience: a wrong address is found soon.
        _, entries = self.read_list(seconds=7)
        return [entry for entry in entries if entry["step"] > step]

    def download_newer_than(self, step: int) -> None:
        """Download the newest intact checkpoint of each name that has more steps."""
        entries = self.newer_than(step)
        downloaded = set[str]()
        # These first: once a checkpoint has its name, the next start takes the disk for complete.
        for filename in ("config.yaml", "metrics.csv") if entries else ():
            self.run.mkdir(parents=True, exist_ok=True)
            if text := self.folder.read(filename):
                (self.run / filename).write_text(text)
        for entry in entries:
            if entry["name"] in downloaded:
                continue
            path = self.run / "checkpoints" / entry["name"]
            try:
                self.folder.download(
                    entry["object"], path, entry["sha256"], entry["size"]
                )
                downloaded.add(entry["name"])
                print(f"resume    downloaded {entry['object']}", flush=True)
            except UserError as error:
                print(f"resume    skipped: {error}", flush=True)
        if entries and not downloaded and not step:
            raise UserError(f"{self.folder.url} has no checkpoint that is intact")
