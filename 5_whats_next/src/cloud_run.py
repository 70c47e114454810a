"""A run's copy in object storage, and the checkpoint that a run goes on from."""

# PATH/RUN/last-000000120-1a2b3c4d.ckpt   a checkpoint: its step, the beginning of its SHA-256
# PATH/RUN/latest.json                    the checkpoints that count
# PATH/RUN/config.yaml, metrics.csv       what belongs to them
#
# The order of an upload: the checkpoint, under a name that is never used again; it is read back and
# compared; then latest.json names it; then older ones are deleted. Wherever that is cut off,
# latest.json names whole objects only.

import asyncio
import hashlib
import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from fsspec.asyn import sync

from src.checkpoint_files import newest_intact, read_step
from src.data.store import file_system
from src.errors import UserError

KEEP = 2  # checkpoints of each name
READ_TIMEOUT = 20.0  # seconds; a server may take long to acknowledge a large object
TIMEOUT = 60.0  # seconds, with all retries; plus one for each megabyte


class CloudFolder:
    """A folder in object storage. Raises UserError if a request and its retries fail."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs, self.path = file_system(
            url, asynchronous=False, read_timeout=READ_TIMEOUT
        )

    def request(
        self, method: str, *arguments: Any, seconds: float = TIMEOUT, size: int = 0
    ) -> Any:
        """Call an asynchronous method of the filesystem, which retries by itself."""
        # A limit for an answer is not enough: a transfer of which a byte arrives now and then would
        # never end.
        seconds += size / 1e6

        async def limited() -> Any:
            async with asyncio.timeout(seconds):
                return await getattr(self.fs, method)(*arguments)

        try:
            return sync(self.fs.loop, limited)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.url}: {error}") from error
        except Exception as error:
            reason = str(error) or f"no answer in {seconds:.0f} s"
            raise UserError(f"{self.url}: {type(error).__name__} {reason}") from error

    # Upload a file and read it back.
    def upload(self, path: Path, name: str, sha256: str) -> None:
        size, copy = path.stat().st_size, path.with_name(f"{path.name}.copy")
        self.request("_put_file", str(path), f"{self.path}/{name}", size=size)
        self.download(name, copy, sha256, size)
        copy.unlink()

    def download(self, name: str, path: Path, sha256: str, size: int) -> None:
        """Download a file. Raises UserError if it is not what was uploaded."""
        part = path.with_name(f"{path.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.request("_get_file", f"{self.path}/{name}", str(part), size=size)
            if digest(part) != sha256:
                raise UserError(f"{self.url}: {name} is damaged")
            part.replace(path)
        except FileNotFoundError as error:
            raise UserError(f"{self.url}: {name} is missing") from error
        finally:
            part.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        self.request("_pipe_file", f"{self.path}/{name}", text.encode())

    def read(self, name: str, seconds: float = TIMEOUT) -> str:
        """A small object; empty if there is none."""
        with suppress(FileNotFoundError):
            return self.request(
                "_cat_file", f"{self.path}/{name}", seconds=seconds
            ).decode()
        return ""

    def delete(self, name: str) -> None:
        self.request("_rm_file", f"{self.path}/{name}")

    def probe(self) -> None:
        """Write, read and delete an object. Raises UserError if one of these is not allowed."""
        name = f"probe-{secrets.token_hex(8)}"
        self.write(name, name)
        if self.read(name) != name:
            raise UserError(f"{self.url}: what was written is not what is read")
        self.delete(name)

    def checkpoints(self, seconds: float = TIMEOUT) -> list[dict[str, Any]]:
        """Name, object, step, sha256 and size of those that count; the newest first."""
        entries = json.loads(self.read("latest.json", seconds) or "[]")
        return sorted(entries, key=lambda entry: -entry["step"])


# SHA-256 of a file.
def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def upload_checkpoint(folder: CloudFolder, run: Path, path: Path, name: str) -> int:
    """Upload the checkpoint ``path`` as ``name``, and what belongs to it; returns its step."""
    step, sha256, size = read_step(path), digest(path), path.stat().st_size
    if step is None:
        raise UserError(f"{name} is damaged on this disk")
    key = f"{Path(name).stem}-{step:09d}-{sha256[:8]}.ckpt"
    entry = {"name": name, "object": key, "step": step, "sha256": sha256, "size": size}
    folder.upload(path, key, sha256)
    # metrics.csv may have rows after the checkpoint: a resume drops them.
    for filename in ("config.yaml", "metrics.csv"):
        if (run / filename).is_file():
            folder.write(filename, (run / filename).read_text())
    listed = [old for old in folder.checkpoints() if old["object"] != key]
    outdated = [old for old in listed if old["name"] == name][KEEP - 1 :]
    kept = [old for old in listed if old not in outdated]
    folder.write("latest.json", json.dumps([entry, *kept], indent=1))
    for old in outdated:
        folder.delete(old["object"])
    return step


def download_newest(folder: CloudFolder, run: Path, step: int) -> None:
    """Download the newest intact checkpoint of each name that has more steps than the disk."""
    downloaded = set[str]()
    # Little patience: a wrong address is found soon.
    listed = folder.checkpoints(seconds=7)
    entries = [entry for entry in listed if entry["step"] > step]
    # These first: once a checkpoint has its name, the next start takes the disk for complete.
    for filename in ("config.yaml", "metrics.csv") if entries else ():
        run.mkdir(parents=True, exist_ok=True)
        if text := folder.read(filename):
            (run / filename).write_text(text)
    for entry in entries:
        if entry["name"] in downloaded:
            continue
        try:
            path = run / "checkpoints" / entry["name"]
            folder.download(entry["object"], path, entry["sha256"], entry["size"])
            downloaded.add(entry["name"])
            print(f"resume    downloaded {entry['object']}", flush=True)
        except UserError as error:
            print(f"resume    skipped: {error}", flush=True)
    if entries and not downloaded and not step:
        raise UserError(f"{folder.url} has no checkpoint that is intact")


def find_run(
    run: Path, policy: Literal["auto", "must", "never"], cloud: str
) -> Path | None:
    """The checkpoint that a run goes on from, downloaded if need be; None if the run begins."""
    # `run` is its folder, with the same name in the cloud; `cloud` the folder of all runs there,
    # empty for none. The policy auto goes on if there is a checkpoint, must demands one, never
    # refuses one.
    run.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(run.parent / f".{run.name}.lock"):
        # One process of a machine downloads.
        checkpoint, step = newest_intact(run / "checkpoints")
        try:
            if cloud:
                download_newest(CloudFolder(f"{cloud}/{run.name}"), run, step)
        except UserError as error:
            if not checkpoint:  # to begin again could overwrite what is there
                raise
            print(f"resume    from the disk, because of {error}", flush=True)
        # Again: what was downloaded is newer, and is checked like any other file.
        checkpoint, step = newest_intact(run / "checkpoints")
    if not checkpoint and list(run.glob("checkpoints/*.damaged")):
        raise UserError(
            f"{run} has no checkpoint that is intact; move it away to begin again"
        )
    if policy == "must" and not checkpoint:
        raise UserError(
            f"{cloud or run.parent}/{run.name}: no checkpoint (resume_policy: must)"
        )
    if policy == "never" and checkpoint:
        raise UserError(
            f"{run.name} has a checkpoint of step {step} (resume_policy: never)"
        )
    return checkpoint
