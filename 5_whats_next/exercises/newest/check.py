"""Is the chosen file the one with the most steps among those that are as they were written?"""

import os
import shutil
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from src.checkpoint_files import find, save_durably

NAMES = ("last.previous.ckpt", "last.ckpt", "best.ckpt")  # of steps 20, 30 and 10


def state_of(step: int) -> dict:
    return {"global_step": step, "weights": torch.full((1000,), float(step))}


def write(folder: Path) -> None:
    """Three checkpoints. Their times are those of a download, the best one last."""
    for name, step in (("last.ckpt", 20), ("last.ckpt", 30), ("best.ckpt", 10)):
        save_durably(state_of(step), folder / name, step)
    for time, name in enumerate(NAMES, start=1):
        os.utime(folder / name, (time, time))


def flip(folder: Path, *names: str) -> None:
    """Flip a bit of a weight: torch.load has no objection."""
    for path in (folder / name for name in names):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def exchange(folder: Path) -> None:
    """Whoever brings files back by hand may mix up their names."""
    (folder / "last.ckpt").rename(folder / "other")
    (folder / "best.ckpt").rename(folder / "last.ckpt")
    (folder / "other").rename(folder / "best.ckpt")


# What happens to the files, and which one to go on from then.
CASES = {
    "all three files are whole": (lambda folder: None, "last.ckpt"),
    "last.ckpt is truncated": (
        lambda folder: os.truncate(folder / "last.ckpt", 2000),
        "last.previous.ckpt",
    ),
    "last.ckpt has a flipped bit": (lambda folder: flip(folder, "last.ckpt"), "last.previous.ckpt"),
    "last.ckpt was set aside": (
        lambda folder: (folder / "last.ckpt").rename(folder / "last.ckpt.damaged"),
        "last.previous.ckpt",
    ),
    "last.ckpt and best.ckpt are exchanged": (exchange, "best.ckpt"),
    "only best.ckpt is whole": (lambda folder: flip(folder, *NAMES[:2]), "best.ckpt"),
    "a file is there that manifest.json does not list": (
        lambda folder: torch.save(state_of(99), folder / "step=99.ckpt"),
        "last.ckpt",
    ),
    "a bit of each file has flipped": (lambda folder: flip(folder, *NAMES), None),
}


def fault_of(found: Path | None, right: Path | None) -> str:
    """What is wrong with going on from a file; empty if nothing is."""
    if found is None:
        return f"begins anew, although {right.name} is whole" if right else ""
    if not found.is_file():
        return f"goes on from {found.name}, which is not there"
    if (entry := find(found)) is None:
        return (
            f"goes on from {found.name}, whose SHA-256 is not in manifest.json: its weights may be "
            "wrong"
        )
    if right and found.name != right.name:
        return (
            f"goes on from {found.name} of step {entry.step}, and not from {right.name} of step "
            f"{find(right).step}"
        )
    return ""


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    with tempfile.TemporaryDirectory() as root:
        whole = Path(root) / "whole"
        whole.mkdir()
        write(whole)
        for number, (what, (change, right)) in enumerate(CASES.items()):
            folder = Path(shutil.copytree(whole, Path(root) / f"{number}"))
            change(folder)
            found = answer.newest(folder)
            fault = fault_of(found and Path(found), right and folder / right)
            assert not fault, f"{what}, and the run {fault}"
