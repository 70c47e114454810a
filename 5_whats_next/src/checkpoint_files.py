"""Checkpoint files that outlive a crash, a full disk and a flipped bit.

``manifest.json`` beside the checkpoints lists the SHA-256 of each file that was written whole. It
is written before a file gets its name, so whatever moment a crash chooses, every file with a name
of its own is in the list, and what is not in the list is damaged. The last version of a file stays
beside the new one: one bad block must not cost the run.
"""

import hashlib
import json
import os
import pickle
import shutil
import zipfile
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from src.errors import UserError

MANIFEST = "manifest.json"
KEPT = 8  # entries of the manifest for each name: more than there are copies of a file


@dataclass(frozen=True)
class Entry:
    """A file that was once written whole: its name, optimiser steps done, bytes, digest."""

    name: str
    step: int
    size: int
    sha256: str


def digest(path: Path) -> str:
    """SHA-256 of a file's content, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def previous(path: Path) -> Path:
    """Where the last version of a checkpoint stays."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def read_manifest(folder: Path) -> list[Entry]:
    """The entries, the newest first; none if there is no manifest.

    One that is there and cannot be read is the disk's fault, so the files have to speak for
    themselves: the sums in their archives.
    """
    try:
        return [Entry(**entry) for entry in json.loads((folder / MANIFEST).read_text())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        return [entry for path in sorted(folder.glob("*.ckpt")) if (entry := described(path))]


def described(path: Path) -> Entry | None:
    """The entry of a file that nobody vouches for; None unless its own sums do."""
    if fault_of(path):
        return None
    with suppress(OSError, RuntimeError, pickle.UnpicklingError):
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        step = int(state.get("global_step", 0))
        return Entry(path.name, step, path.stat().st_size, digest(path))
    return None


def fault_of(path: Path) -> str:
    """What is wrong with an archive by its own sums; empty for a whole one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() or ""
    except (OSError, zipfile.BadZipFile) as error:
        return str(error)


def write_text(path: Path, text: str) -> None:
    """Replace a small file in one step, and return when it is on the disk."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def add_to_manifest(folder: Path, entry: Entry) -> None:
    """Put an entry in front."""
    entries = [entry, *(old for old in read_manifest(folder) if old != entry)]
    seen: Counter[str] = Counter()
    kept = []
    for old in entries:
        seen[old.name] += 1
        if seen[old.name] <= KEPT:
            kept.append(old)
    write_text(folder / MANIFEST, json.dumps([asdict(old) for old in kept], indent=1))


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk: fsync of a file covers no name."""
    with suppress(OSError):  # some network file systems cannot, and need not
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def save_durably(state: dict[str, Any], path: Path, step: int) -> Entry:
    """Write a checkpoint; the one that was there becomes its ``previous``.

    At each moment of it there is a whole file with the name ``path``, once there has been one.

    Args:
        state: what torch.save takes.
        path: its folder must exist.
        step: optimiser steps done, for whoever looks for the newest.

    Raises:
        UserError: the disk is full or read-only; all older files are as they were.
    """
    # In the same folder: a rename is atomic only within one file system, and $TMPDIR may lie
    # on another one (https://github.com/Lightning-AI/pytorch-lightning/issues/21253).
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        entry = Entry(path.name, step, temporary.stat().st_size, digest(temporary))
        add_to_manifest(path.parent, entry)
        if path.exists():
            keep_as(path, previous(path))
        temporary.replace(path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        for half in (path.name, previous(path).name, MANIFEST):
            path.with_name(f"{half}.tmp").unlink(missing_ok=True)
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot write {path}: {reason}; its last version is intact") from error
    return entry


def keep_as(path: Path, copy: Path) -> None:
    """Give a file a second name, without a moment in which either of them is missing."""
    temporary = copy.with_name(copy.name + ".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, temporary)
    temporary.replace(copy)


def find(path: Path, entries: list[Entry] | None = None) -> Entry | None:
    """The manifest's entry of a file's content; None if it has changed since it was written."""
    entries = read_manifest(path.parent) if entries is None else entries
    sha256 = digest(path)
    return next((one for one in entries if one.sha256 == sha256), None)


def identify(path: Path, name: str, step: int, entries: list[Entry]) -> Entry:
    """What a file is, by its content: the manifest's newest entry may be that of another one.

    Args:
        path: the file.
        name: what it is called where it comes from.
        step: optimiser steps done, if there is no manifest.
        entries: of the manifest; none if another CheckpointIO writes the files.

    Raises:
        UserError: it is not what was written.
    """
    if not entries:
        if fault := fault_of(path):
            raise UserError(f"{name} is not whole ({fault})")
        return Entry(name, step, path.stat().st_size, digest(path))
    found = find(path, entries)
    if found is None:
        raise UserError(f"{name} is damaged on this disk")
    return replace(found, name=name)


def check(path: Path) -> None:
    """Raise UserError if a checkpoint is not what was written.

    Without a manifest nothing is known against it: the runs of earlier chapters have none.
    """
    entries = read_manifest(path.parent)
    if (path.parent / MANIFEST).exists() and find(path, entries) is None:
        whole = path.stat().st_size in {entry.size for entry in entries}
        raise UserError(f"{path} is {'damaged' if whole else 'truncated'}: {UNKNOWN}")


UNKNOWN = "its SHA-256 is not in manifest.json"


def newest_intact(folder: Path) -> tuple[Path | None, int, list[Path]]:
    """The checkpoint with the most steps among those that are as they were written.

    The digest says which step a file belongs to: names and times survive no copying.

    Returns:
        Its path (None if there is none), its step, and the files that are damaged.
    """
    entries = read_manifest(folder)
    if not (folder / MANIFEST).exists():
        last = folder / "last.ckpt"
        return (last if last.is_file() else None), 0, []
    found = []
    for path in sorted(folder.glob("*.ckpt")):
        with suppress(FileNotFoundError):  # another rank has just set it aside
            found.append((find(path, entries), path))
    # Of two files of the same step, last.ckpt is the one that a run goes on from.
    intact = [(entry.step, path.stem.startswith("last"), path) for entry, path in found if entry]
    damaged = [path for entry, path in found if entry is None]
    step, _, newest = max(intact, default=(0, False, None), key=lambda one: one[:2])
    return newest, step, damaged


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it never takes the place of an intact copy."""
    aside = path.with_name(path.name + ".damaged")
    with suppress(FileNotFoundError):  # another process of this machine was faster
        path.replace(aside)
    return aside
