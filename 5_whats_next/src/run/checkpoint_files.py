"""Checkpoints on the disk that survive a crash, a full disk and a flipped bit."""

import errno
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.serialization import get_unsafe_globals_in_checkpoint

from src.run.checkpoint import read_checkpoint, save_atomic
from src.run.errors import UserError

# In the environment, so that ranks know it: the version of the file that is known to be intact.
CHECKED = "CHECKED_CHECKPOINT"


def is_intact(path: Path) -> bool:
    """Whether all parts of a file have the checksums that were saved with them.

    torch.save writes a zip archive with a checksum of each part. torch.load does not compare them:
    a flipped bit becomes a weight.

    Raises:
        UserError: the file cannot be read, as without permission; that is no damage.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except OSError as error:
        # A damaged table of contents may point outside of the file.
        if error.errno == errno.EINVAL:
            return False
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except Exception:  # a damaged archive can fail anywhere
        return False


def saved_step(path: Path) -> int:
    """The optimiser steps in a checkpoint, whose weights stay on the disk.

    Raises:
        UserError: it holds something that no resume reads, because it may run any code.
    """
    if refused := get_unsafe_globals_in_checkpoint(path):
        raise UserError(f"{path} holds {', '.join(refused)}, which no resume reads")
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return int(saved["global_step"])


def read_step(path: Path) -> int | None:
    """The optimiser steps in a checkpoint; None if the file is damaged."""
    if not is_intact(path):
        return None
    try:
        return saved_step(path)
    except (RuntimeError, KeyError):  # torch compares what zipfile does not look at
        return None


def recorded_step(path: Path) -> int | None:
    """The step that a checkpoint names, without a look at its weights; None if it names none."""
    try:
        return saved_step(path)
    except Exception:  # a damaged file can fail anywhere
        return None


def version(path: Path) -> str:
    """What changes when a file is written or replaced."""
    status = path.stat()
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def newest_intact(folder: Path) -> tuple[Path | None, int]:
    """The checkpoint with the most steps among those that are whole, and its step.

    Its version goes to the environment: neither this process nor a rank that it launches reads the
    same file in full again.
    """
    candidates = []
    for path in folder.glob("*.ckpt"):
        step = recorded_step(path)
        if step is None:
            step = read_step(path)  # an error if it cannot be read, or must not be
        if step is None:
            set_aside(path)
        else:
            # Of two files with the same step last.ckpt is taken, and not best.ckpt.
            candidates.append((step, "last" in path.name, path))
    # With gigabytes in each file a start would take minutes if all of them were read.
    for step, _, path in sorted(candidates, reverse=True):
        checked = version(path)
        if os.environ.get(CHECKED) == checked or is_intact(path):
            os.environ[CHECKED] = checked
            return path, step
        set_aside(path)
    return None, 0


def set_aside(path: Path) -> None:
    """Give a damaged checkpoint a name under which nobody looks for one."""
    print(f"resume    {path.name} is damaged, and is set aside", flush=True)
    with suppress(FileNotFoundError):  # another rank was faster
        path.replace(path.with_name(f"{path.name}.damaged"))


def save_durably(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint; the one that was there becomes NAME.previous.ckpt.

    Raises:
        UserError: it failed, as on a full disk, or no resume could read it; the older files are as
            they were.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unchecked = path.with_name(f"{path.name}.unchecked")
    previous = path.with_name(f"{path.stem}.previous.tmp")
    try:
        # Another name, fsync, rename: a whole file exists at every moment.
        save_atomic(state, unchecked)
        # Under a name that no resume looks for: a training of days must not end with nothing.
        if get_unsafe_globals_in_checkpoint(unchecked):
            unchecked.unlink()
            names = ", ".join(unreadable_entries(state))
            raise UserError(
                f"no resume could read the checkpoint: write {names} as str, int, float,"
                " list or dict (save_hyperparameters, state_dict)"
            )
        if path.exists():
            add_name(path, previous)
        unchecked.replace(path)
        if previous.exists():
            previous.replace(path.with_name(f"{path.stem}.previous.ckpt"))
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        part = unchecked.with_name(f"{unchecked.name}.tmp")
        for leftover in (part, unchecked, previous):
            # They may fill the disk.
            leftover.unlink(missing_ok=True)
        # On a full disk torch.save's clean-up fails, too, and hides the cause.
        cause: BaseException = error
        while cause.__context__ and not isinstance(cause, OSError):
            cause = cause.__context__
        reason = str(cause).splitlines()[0]
        raise UserError(
            f"cannot write {path}: {reason}; its last version is intact"
        ) from error


def add_name(path: Path, other: Path) -> None:
    """A second name for a file: it costs no copy, and stays when ``path`` is replaced."""
    other.unlink(missing_ok=True)
    try:
        os.link(path, other)
    except OSError:  # a filesystem without hard links
        shutil.copyfile(path, other)


def sync_folder(folder: Path) -> None:
    """Return when a folder's names are on the disk, too: fsync of a file does not cover them."""
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # some network filesystems cannot
        os.fsync(descriptor)
    os.close(descriptor)


class DurableCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoints, written and read as above."""

    # Lightning stages in TMPDIR and moves: where that is another filesystem, a crash while moving
    # destroys the last checkpoint. https://github.com/Lightning-AI/pytorch-lightning/issues/21253
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, *_: Any, **__: Any
    ) -> None:
        """Write it. Raises UserError if that fails, or if no resume could read it."""
        save_durably(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Read it. Raises UserError if the file is damaged."""
        path = Path(path)
        is_checked = path.exists() and os.environ.get(CHECKED) == version(path)
        if not is_checked and read_step(path) is None:
            raise UserError(f"{path} is damaged, or no checkpoint")
        checkpoint = read_checkpoint(path)
        # ModelCheckpoint forgets the best score if the run's folder has another path now, as on
        # another machine: the next epoch would then replace best.ckpt, however bad it is.
        for state in checkpoint["callbacks"].values():
            if "dirpath" in state:
                state["dirpath"] = str(path.resolve().parent)
        return checkpoint


def unreadable_entries(checkpoint: dict[str, Any]) -> Iterator[str]:
    """The names of the entries that torch.load refuses, such as hyper_parameters.folder."""
    for section, content in checkpoint.items():
        entries = {section: content}
        if isinstance(content, dict):
            entries = {f"{section}.{name}": value for name, value in content.items()}
        for name, value in entries.items():
            file = BytesIO()
            torch.save(value, file)
            file.seek(0)
            if get_unsafe_globals_in_checkpoint(file):
                yield name
