"""A run's copy in object storage: what it holds, who may write it, how to get it back.

  PATH/RUN/run.json                   whose run it is, and which process writes it now
  PATH/RUN/last-000000120-1a2b3c4d.ckpt   a checkpoint, its step, the beginning of its digest
  PATH/RUN/metrics-000000120-9f8e7d6c.csv     the metrics up to it, and config-... its settings
  PATH/RUN/latest.json                the checkpoints that count, with size and SHA-256

``latest.json`` is written last: what it does not name is not there, whether an upload broke off or
a deletion did. Objects are never overwritten, so it always names whole files.
"""

import hashlib
import json
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from src.checkpoint_files import (
    Entry,
    add_to_manifest,
    keep_as,
    newest_intact,
    previous,
    write_text,
)
from src.cloud_folder import CloudFolder
from src.data.cloud_errors import CloudError
from src.lightning_ranks import SharedError

LATEST, OWNER = "latest.json", "run.json"
NOTE = "cloud.json"  # beside the local checkpoints: which run in the cloud is theirs
COMPANIONS = ("config.yaml", "metrics.csv")
REQUEST = 20.0  # seconds for a small object
# Names that only this module gives; whatever else lies in the folder is not ours to delete.
OURS = re.compile(r".+-\d{9}-[0-9a-f]{8}\.(ckpt|yaml|csv)(\.part)?|probe-[0-9a-f]{16}")


@dataclass(frozen=True)
class Copy:
    """A checkpoint in the cloud: its local name, the object, and the files that go with it."""

    name: str
    object: str
    step: int
    size: int
    sha256: str
    files: dict[str, dict[str, str]] = field(default_factory=dict)  # name: object, sha256


class SupersededError(CloudError):
    """Another process has taken the run over; whoever was first must not write any more."""


class CloudRun:
    """Writes the copy of one run.

    Args:
        folder: where; the run's own.
        run_id: of the run.
        keep: checkpoints that stay, of each name.
    """

    def __init__(self, folder: CloudFolder, run_id: str, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self.run_id, self.session = run_id, secrets.token_hex(8)
        self.claimed = False
        self.copies: list[Copy] | None = None  # what latest.json names; None: not read yet

    def claim(self) -> None:
        """Note that this process writes the run now. Raises CloudError if it is another run."""
        owner = owner_of(self.folder)
        # A run that has not saved anything yet may be begun anew, for example after a crash.
        if owner not in ("", self.run_id) and read_copies(self.folder):
            raise CloudError(
                f"{self.folder.url} belongs to another run; choose another name for this one, or "
                f"continue that one with --resume {self.folder.url}"
            )
        mine = {"run_id": self.run_id, "session": self.session, "host": socket.gethostname()}
        self.folder.put_text(OWNER, json.dumps(mine | {"time": time.time()}), REQUEST)
        self.claimed = True

    def sweep(self) -> None:
        """Delete what a killed process has left: objects that the list does not name."""
        named = {name for copy in read_copies(self.folder) for name in objects(copy)}
        if not named:  # without a list nobody knows what counts
            return
        for name in set(self.folder.names(REQUEST)) - named:
            if OURS.fullmatch(name):
                self.folder.delete(name, REQUEST)

    def check_owner(self) -> None:
        """Raise SupersededError if another process writes the run: a requeued job, say."""
        owner = json.loads(self.folder.get_text(OWNER, REQUEST) or "{}")
        if owner.get("session", self.session) != self.session:
            raise SupersededError(
                f"{self.folder.url} is continued by another process, on {owner.get('host')}; "
                "this one uploads no more"
            )

    def save(self, path: Path, entry: Entry, beside: Path, seconds: float) -> Copy:
        """Upload a checkpoint: the object first, then the list that names it, then the deletions.

        Args:
            path: a file that does not change meanwhile.
            entry: its name in the run's folder, step, size and digest.
            beside: the run's folder, with config.yaml and metrics.csv.
            seconds: for all of it.
        """
        end = time.monotonic() + seconds

        def left() -> float:
            return max(1.0, end - time.monotonic())

        name, step = entry.name, entry.step
        there = f"{Path(name).stem}-{step:09d}-{entry.sha256[:8]}.ckpt"
        self.folder.put(path, there, entry.sha256, left())
        files = {}
        for companion in COMPANIONS:
            if (beside / companion).is_file():
                files[companion] = self.save_beside(beside / companion, step, left())
        new = Copy(name, there, step, entry.size, entry.sha256, files)
        if not self.claimed:
            self.claim()
        self.check_owner()  # so nobody else has written the list since
        old = read_copies(self.folder) if self.copies is None else self.copies
        kept = [new, *(copy for copy in old if copy.object != new.object)]
        kept = [c for c in kept if [o for o in kept if o.name == c.name].index(c) < self.keep]
        head = {"run_id": self.run_id, "time": time.time()} | asdict(new)
        text = json.dumps(head | {"kept": [asdict(copy) for copy in kept]}, indent=1)
        self.folder.put_text(LATEST, text, min(left(), REQUEST))
        self.copies = kept
        self.remove(old, kept)
        return new

    def save_beside(self, file: Path, step: int, seconds: float) -> dict[str, str]:
        """Upload a small file that goes with a checkpoint; nothing is written to this disk."""
        content = file.read_bytes()  # at once: the training goes on writing to metrics.csv
        sha256 = hashlib.sha256(content).hexdigest()
        for copy in self.copies or []:  # config.yaml never changes
            if copy.files.get(file.name, {}).get("sha256") == sha256:
                return copy.files[file.name]
        # Two checkpoints of one step may have two of them: the second one is longer.
        target = f"{file.stem}-{step:09d}-{sha256[:8]}{file.suffix}"
        self.folder.put_small(target, content, seconds)
        return {"object": target, "sha256": sha256}

    def remove(self, old: list[Copy], kept: list[Copy]) -> None:
        """Delete what the list does not name any more; what fails to be deleted does no harm."""
        named = {name for copy in kept for name in objects(copy)}
        for copy in old:
            for name in objects(copy) - named:
                try:
                    self.folder.delete(name, REQUEST)
                except CloudError:
                    return


def objects(copy: Copy) -> set[str]:
    """The names of the objects that belong to a copy."""
    return {copy.object, *(file["object"] for file in copy.files.values())}


def read_copies(folder: CloudFolder, seconds: float = REQUEST) -> list[Copy]:
    """The checkpoints that count, the newest first; none if nothing is there.

    Raises CloudError if the list cannot be read.
    """
    text = folder.get_text(LATEST, seconds)
    if text is None:
        return []
    try:
        copies = [Copy(**copy) for copy in json.loads(text)["kept"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CloudError(f"{folder.url}: {LATEST} is no list of checkpoints ({error})") from error
    return sorted(copies, key=lambda copy: (-copy.step, copy.name != "last.ckpt"))


def fetch(folder: CloudFolder, run: Path, seconds: float = 3600.0, name: str = "") -> list[str]:
    """Download the newest intact checkpoint of a run, and what belongs to it.

    Args:
        folder: of the run in the cloud.
        run: its local folder; what is there and older stays as ``previous``.
        seconds: for each file.
        name: of the run's folder, if it is still to get it.

    Returns:
        A line for each thing that was done or skipped. Raises SharedError if nothing is intact.
    """
    copies = read_copies(folder)
    said: list[str] = []
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    _, have, _ = newest_intact(checkpoints)
    for copy in copies:
        if 0 < have >= copy.step:  # what is newer there is damaged
            return [*said, f"the disk has step {have}"]
        try:
            # Metrics that are too long do no harm: rows after the checkpoint are dropped.
            for companion, file in copy.files.items():
                folder.get(file["object"], run / companion, file["sha256"], seconds)
            bring(folder, copy, checkpoints / "last.ckpt", seconds)
        except CloudError as error:
            said.append(f"skipped {copy.object}: {error}")
            continue
        said.append(f"downloaded {copy.object}, step {copy.step}")
        best = [c for c in copies if c.name == "best.ckpt" and c.step <= copy.step]
        for one in best[:1]:
            try:
                bring(folder, one, checkpoints / "best.ckpt", seconds)
                said.append(f"downloaded {one.object}, step {one.step}")
            except CloudError as error:
                said.append(f"skipped {one.object}: {error}")
        note_run(checkpoints, folder.url, owner_of(folder), name or run.name)
        return said
    reasons = "; ".join(said) or f"there is no {LATEST}"
    raise SharedError(f"{folder.url} holds no checkpoint to go on from ({reasons})")


def bring(folder: CloudFolder, copy: Copy, path: Path, seconds: float) -> None:
    """Download a checkpoint; the list names it before it has its name, as when it is saved."""
    arrived = path.with_name(path.name + ".arrived")
    folder.get(copy.object, arrived, copy.sha256, seconds)
    add_to_manifest(path.parent, Entry(path.name, copy.step, copy.size, copy.sha256))
    if path.exists():
        keep_as(path, previous(path))
    arrived.replace(path)


def owner_of(folder: CloudFolder) -> str:
    """The id of the run that lies in a folder; empty if none does."""
    found: dict[str, Any] = json.loads(folder.get_text(OWNER, REQUEST) or "{}")
    return str(found.get("run_id", ""))


def note_run(checkpoints: Path, url: str, run_id: str, run: str) -> None:
    """Remember beside the local checkpoints which run in the cloud is theirs."""
    note = {"run_id": run_id, "url": url, "run": run}
    write_text(checkpoints / NOTE, json.dumps(note, indent=1))


def noted_run(checkpoints: Path, run: str) -> tuple[str, str]:
    """The id and the address that ``note_run`` has written for a run; empty if it has not."""
    try:
        note = json.loads((checkpoints / NOTE).read_text())
        if note["run"] != run:  # several runs may share a local_dir
            return "", ""
        return str(note["run_id"]), str(note["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def is_newer(folder: CloudFolder, run: Path, seconds: float) -> bool:
    """Whether the cloud has more steps of a run than the disk."""
    path, step, _ = newest_intact(run / "checkpoints")
    copies = read_copies(folder, seconds)
    return bool(copies) and (path is None or copies[0].step > step)


def run_url(cloud_storage_path: str, name: str) -> str:
    """Where a run lies."""
    return f"{cloud_storage_path.rstrip('/')}/{name.rstrip('/').rpartition('/')[2]}"
