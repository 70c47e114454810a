"""Is there a whole file at each moment of a save?

Nothing has to be killed for that. A kill leaves what is in the folder at that moment, so it is
enough to look there before and after each call of a function. A power cut leaves of a file what its
last fsync has found.
"""

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch
from warnings import catch_warnings

import torch


def state_of(step: int) -> dict[str, Any]:
    return {"global_step": step, "weights": torch.full((100,), float(step))}


def step_in(content: bytes) -> int | None:
    """The step of a checkpoint; None if it is not whole."""
    with suppress(Exception), catch_warnings(action="ignore"):  # a torn file can fail anywhere
        state = torch.load(BytesIO(content), weights_only=True)
        if state["weights"].equal(state_of(state["global_step"])["weights"]):
            return int(state["global_step"])
    return None


class Watch:
    """Looks at a checkpoint from the outside, while an answer writes it.

    Args:
        path: the checkpoint.
        killed: gets a copy of its folder as a kill before the rename would leave it.
    """

    def __init__(self, path: Path, killed: Path) -> None:
        self.path, self.killed = path, killed
        self.content = path.read_bytes() if path.exists() else None
        self.synced: dict[int, bytes] = {}  # of each inode, what is on the disk
        self.faults: list[str] = []
        self.copies = False  # a rename was refused

    def look(self, *_: object) -> None:
        """Note what a kill or a power cut would cost now."""
        now = self.path.read_bytes() if self.path.exists() else None
        if now == self.content:
            return
        self.content = now
        if now is None or step_in(now) is None:
            found = "there is no last.ckpt" if now is None else f"last.ckpt has {len(now)} bytes"
            why = " (a move from another file system is a copy)"
            self.faults.append(
                f"for a moment {found}{why if self.copies else ''}: a kill at that moment leaves "
                "no whole file of that name"
            )
        elif (synced := self.synced.get(self.path.stat().st_ino)) is None:
            self.faults.append(
                "a file without fsync gets the name last.ckpt: after a power cut it can be empty"
            )
        elif synced != now:
            self.faults.append(
                f"fsync finds {len(synced)} of the file's {len(now)} bytes, and the others have "
                "not left Python's buffer: after a power cut they are missing"
            )

    def sync(self, call: Callable) -> Callable:
        """Stands in for fsync, and remembers what it has found."""

        def stand_in(file: Any) -> None:
            call(file)
            inode = os.fstat(file if isinstance(file, int) else file.fileno()).st_ino
            for path in self.path.parent.rglob("*"):
                if path.is_file() and path.stat().st_ino == inode:
                    self.synced[inode] = path.read_bytes()

        return stand_in

    def rename(self, call: Callable) -> Callable:
        """Stands in for a rename, as if the folder had a file system of its own."""

        def stand_in(source: Any, target: Any, **more: Any) -> None:
            inside = [self.path.parent in Path(path).parents for path in (source, target)]
            if inside[0] != inside[1]:
                self.copies = True
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            if Path(target) == self.path:
                shutil.copytree(self.path.parent, self.killed, dirs_exist_ok=True)
            call(source, target, **more)

        return stand_in

    def save(self, answer: ModuleType, step: int) -> None:
        """Let the answer save. Raises AssertionError with the first fault."""
        stand_ins = {call: self.rename(call) for call in (os.rename, os.replace)}
        for name in {"fsync", "fdatasync"} & vars(os).keys():  # not all systems have both
            stand_ins[getattr(os, name)] = self.sync(getattr(os, name))
        with ExitStack() as stack:
            for owner in (os, answer):  # an answer may say: from os import fsync
                for name, value in list(vars(owner).items()):
                    for call, stand_in in stand_ins.items():
                        if value is call:
                            stack.enter_context(patch.object(owner, name, stand_in))
            stack.callback(sys.setprofile, sys.getprofile())
            sys.setprofile(self.look)
            try:
                answer.save(state_of(step), self.path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                raise AssertionError(
                    "the rename fails: $TMPDIR is another file system here, as it can be in a "
                    "container"
                ) from error
        self.look()
        assert self.content, "save is done, and there is no last.ckpt"
        assert step_in(self.content) == step, f"last.ckpt does not hold the state of step {step}"
        assert not self.faults, self.faults[0]


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    with tempfile.TemporaryDirectory() as root, patch.object(tempfile, "tempdir", root):
        folders = (Path(root).resolve() / name for name in ("whole", "killed", "again"))
        whole, killed, again = folders
        whole.mkdir()
        for step in (100, 200):
            Watch(whole / "last.ckpt", killed).save(answer, step)
        killed.mkdir(exist_ok=True)
        left = ", ".join(sorted({path.name for path in killed.iterdir()} - {"last.ckpt"}))
        try:
            Watch(killed / "last.ckpt", again).save(answer, 300)
        except OSError as error:
            raise AssertionError(
                f"a kill before the rename leaves {left}, and then no save succeeds any more: "
                f"{type(error).__name__}"
            ) from error
