"""Checkpoints on the disk: two copies, a digest, and nothing lost whatever happens."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from src import checkpoint_files
from src.checkpoint_files import check, newest_intact, previous, read_manifest, save_durably
from src.config import CHAPTER
from src.errors import UserError
from src.resume import choose


def state(step: int) -> dict:
    return {"global_step": step, "weights": torch.full((1000,), float(step))}


def load(path: Path) -> int:
    return torch.load(path, weights_only=True)["global_step"]


def save(folder: Path, *steps: int, name: str = "last.ckpt") -> Path:
    for step in steps:
        save_durably(state(step), folder / name, step)
    return folder / name


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_last_version_stays(tmp_path):
    path = save(tmp_path, 1, 2, 3)
    assert (load(path), load(previous(path))) == (3, 2)
    assert [(one.name, one.step) for one in read_manifest(tmp_path)][:2] == [
        ("last.ckpt", 3),
        ("last.ckpt", 2),
    ]
    names = {"last.ckpt", "last.previous.ckpt", "manifest.json"}
    assert {one.name for one in tmp_path.iterdir()} == names


def test_a_flipped_bit_loads_without_a_word_and_is_found(tmp_path):
    path = save(tmp_path, 1, 2)
    flip_a_bit(path)
    assert load(path) == 2  # PyTorch has no objection
    with pytest.raises(UserError, match=r"last.ckpt is damaged: its SHA-256 is not in manifest"):
        check(path)


@pytest.mark.parametrize("fault", [flip_a_bit, lambda path: path.write_bytes(b"half")])
def test_falls_back_to_the_newest_intact_copy_and_says_so(tmp_path, fault, capsys):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    path = save(checkpoints, 1, 2)
    save(checkpoints, 1, name="best.ckpt")
    fault(path)
    assert choose(tmp_path) == previous(path)
    printed = capsys.readouterr().out
    assert "last.ckpt is damaged" in printed
    assert "goes on from last.previous.ckpt, step 1" in printed
    # The damaged file is out of the way: it must not become the previous one of the next save.
    save(checkpoints, 3)
    assert (load(path), load(previous(path))) == (3, 1)


def test_nothing_intact_is_one_line(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    flip_a_bit(save(checkpoints, 1))
    with pytest.raises(UserError, match="holds no intact checkpoint"):
        choose(tmp_path)


def test_the_newest_by_step_and_not_by_name_or_time(tmp_path):
    best, last = save(tmp_path, 4, name="best.ckpt"), save(tmp_path, 2)
    os.utime(best, (1, 1))
    assert newest_intact(tmp_path) == (best, 4, [])
    save(tmp_path, 4)
    assert newest_intact(tmp_path)[0] == last  # of the same step the one to go on from


def test_a_run_of_an_earlier_chapter_has_no_manifest(tmp_path):
    path = save(tmp_path, 1)
    (tmp_path / "manifest.json").unlink()
    assert newest_intact(tmp_path) == (path, 0, [])
    check(path)


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"name": "last.ckpt"}]'])
def test_a_manifest_that_cannot_be_read_lets_the_files_speak(tmp_path, content):
    """By the sums in their archives; the next checkpoint writes it anew."""
    path = save(tmp_path, 1, 2)
    (tmp_path / "manifest.json").write_text(content)
    assert newest_intact(tmp_path) == (path, 2, [])
    check(path)
    flip_a_bit(path)
    assert newest_intact(tmp_path) == (previous(path), 1, [path])
    with pytest.raises(UserError, match="is damaged"):
        check(path)
    save(tmp_path, 3)
    assert {one.step for one in read_manifest(tmp_path)} == {1, 3}


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_files(tmp_path, monkeypatch, call):
    path = save(tmp_path, 1, 2)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr(checkpoint_files.torch, "save", full)
        elif call == "fsync":
            patch.setattr(checkpoint_files.os, "fsync", full)
        else:
            patch.setattr(Path, "replace", full)
        with pytest.raises(UserError, match="No space left on device; its last version is intact"):
            save(tmp_path, 3)
    assert (load(path), load(previous(path))) == (2, 1)
    assert newest_intact(tmp_path) == (path, 2, [])
    assert not list(tmp_path.glob("*.tmp"))


# Imports torch once, and forks for each call at which it dies.
KILLED = """
import os, sys, torch
from pathlib import Path
from src import checkpoint_files
calls = 0
def counted(original):
    def call(*arguments, **settings):
        global calls
        calls += 1
        if calls == at:
            os._exit(9)
        return original(*arguments, **settings)
    return call
for owner, name in [(os, "fsync"), (os, "link"), (Path, "replace"), (torch, "save")]:
    setattr(owner, name, counted(getattr(owner, name)))
for at in range(1, 1000):
    folder = Path(sys.argv[1]) / str(at)
    folder.mkdir()
    if not os.fork():
        for step in (1, 2, 3):
            state = {"global_step": step, "weights": torch.full((1000,), float(step))}
            checkpoint_files.save_durably(state, folder / "last.ckpt", step)
            (folder / "done").write_text(str(step))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.wait()[1]) == 0:
        break
"""


@pytest.mark.slow
def test_killed_at_each_call_nothing_is_lost(tmp_path):
    """Whatever has been saved is there, whole, and known; so is what is half saved not."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    subprocess.run(command, cwd=CHAPTER, check=True, timeout=120)
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(folders) >= 3 * 6
    for folder in folders:
        done = int((folder / "done").read_text()) if (folder / "done").exists() else 0
        path, step, damaged = newest_intact(folder)
        assert not damaged
        assert step in (done, done + 1)
        assert (load(path) if path else 0) == step
    assert done == 3  # the last one lived
