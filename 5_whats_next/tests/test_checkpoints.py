"""Checkpoints on the disk: whatever happens to them, a run goes on from the newest intact one."""

import contextlib
import errno
import itertools
import os
import random
import re
import resource
import sys
from unittest import mock
from zipfile import ZipFile

import pytest
import torch

from src.callbacks.stop_and_save import StopAndSave
from src.data.s3_server import connect
from src.run import checkpoint_files
from src.run.checkpoint_files import newest_intact, read_step, save_durably
from src.run.errors import UserError
from tests.runs import TWO_RANKS, call, rows, start, train, wait_until_gone
from tests.test_cloud import RUNS, training

STATE = {"weights": torch.arange(100_000.0), "global_step": 0}
EVERY_STEP = [
    "--trainer.checkpoint_every_n_steps=1",
    "--trainer.cloud_storage_path=none",
]


def save_and_die(path, number):
    """Save in another process, which ends at its n-th operation on files; whether it got there."""
    child = os.fork()
    if not child:
        count = itertools.count()

        def end(event, _):
            if event.partition(".")[0] in ("open", "os") and next(count) == number:
                os._exit(9)

        sys.addaudithook(end)
        save_durably(STATE | {"global_step": 3}, path)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_kill_during_a_save_loses_nothing(tmp_path):
    """At each operation on files. Broken by: unlink instead of add_name; no save_atomic."""
    path = tmp_path / "last.ckpt"
    for number in itertools.count():
        for step in (1, 2):
            save_durably(STATE | {"global_step": step}, path)
        is_killed = save_and_die(path, number)
        assert newest_intact(tmp_path)[1] in (2, 3)
        assert read_step(tmp_path / "last.previous.ckpt") in (1, 2)
        assert not list(tmp_path.glob("*.damaged"))
        if not is_killed:
            break
    assert number > 5
    assert newest_intact(tmp_path)[1] == 3


def test_a_flipped_bit_or_a_missing_end_is_found(tmp_path):
    """Broken by: no testzip in read_step."""
    for step in (1, 2):
        save_durably(STATE | {"global_step": step}, tmp_path / "last.ckpt")
    whole, rng = (tmp_path / "last.ckpt").read_bytes(), random.Random(0)
    for _ in range(50):
        content = bytearray(whole)
        content[
            whole.index(STATE["weights"].numpy().tobytes()) + rng.randrange(400_000)
        ] ^= 1
        (tmp_path / "last.ckpt").write_bytes(content)
        assert read_step(tmp_path / "last.ckpt") is None
        (tmp_path / "last.ckpt").write_bytes(whole[: rng.randrange(len(whole))])
        assert read_step(tmp_path / "last.ckpt") is None
    assert newest_intact(tmp_path) == (tmp_path / "last.previous.ckpt", 1)
    assert (tmp_path / "last.ckpt.damaged").exists()  # set aside, and not deleted


def test_a_start_reads_one_file_in_full(monkeypatch, tmp_path):
    """To check it, and again to load it; what changes in between is checked again.

    Broken by: read_step of each file; no CHECKED in newest_intact, or in load_checkpoint; no size
    and time in version.
    """
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, "max_steps=3")
    path = tmp_path / tmp_path.name / "checkpoints" / "last.ckpt"
    checked = []
    testzip = ZipFile.testzip

    def spy(archive):
        checked.append(archive.filename)
        return testzip(archive)

    monkeypatch.setattr(ZipFile, "testzip", spy)
    load = mock.Mock(wraps=checkpoint_files.read_checkpoint)
    monkeypatch.setattr(checkpoint_files, "read_checkpoint", load)
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, "max_steps=4")
    assert [name for name in checked if ".uploads" not in name] == [str(path)]
    load.assert_called_once_with(path)

    save_durably(STATE | {"global_step": 5}, path)
    assert newest_intact(path.parent) == (path, 5)
    content = bytearray(path.read_bytes())
    content[content.index(STATE["weights"].numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        checkpoint_files.DurableCheckpointIO().load_checkpoint(path)


@contextlib.contextmanager
def full_disk():
    """A real limit of the system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


CANNOT_WRITE = f"cannot write .*last.ckpt: .*{os.strerror(errno.EFBIG)}"


def test_a_full_disk_ends_a_run_and_loses_nothing(monkeypatch, tmp_path):
    """Broken by: no except in save_durably; no unlink there."""
    settings = [*EVERY_STEP, "--trainer.max_steps=2"]
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, *settings)
    resume = [f"--resume={tmp_path}/run_1", "--trainer.max_steps=-1"]
    with full_disk(), pytest.raises(UserError, match=CANNOT_WRITE):
        call(monkeypatch, *resume)
    steps = {path.name: read_step(path) for path in tmp_path.glob("run_1/*/*")}
    assert steps == {"last.ckpt": 2, "last.previous.ckpt": 1}


@pytest.mark.slow
def test_a_full_disk_ends_two_ranks(tmp_path):
    """With one line, and nobody left, though a thread uploads.

    Broken by: no except in save_durably; no kill in launch.
    """
    connect()  # a server that may write
    settings = ["--trainer.devices=2", "--trainer.checkpoint_every_n_steps=1"]
    settings += [f"--trainer.cloud_storage_path={RUNS}/{tmp_path.name}"]
    with full_disk():
        command = [*TWO_RANKS, "lightning_train.py"]
        process = start(tmp_path, *settings, command=command)
    console, _ = process.communicate(timeout=500)
    assert process.returncode == 1, console
    assert re.search(f"^error: {CANNOT_WRITE}", console, re.MULTILINE)
    # The other rank has lost its connection, and says so.
    assert "Traceback" not in console or "rank 0 failed first" in console
    wait_until_gone(process.pid)
    assert not [*tmp_path.rglob("*.tmp"), *tmp_path.rglob("*.ckpt")]


@pytest.mark.filterwarnings(
    "error:The dirpath has changed"
)  # the best score would be forgotten
def test_a_damaged_checkpoint_is_set_aside_and_the_run_goes_on(
    monkeypatch, tmp_path, capsys
):
    """In a moved folder. Broken by: no dirpath in load_checkpoint; newest_intact by time."""
    whole = train(monkeypatch, tmp_path / "whole", *EVERY_STEP)
    settings = [*EVERY_STEP, "--trainer.max_steps=6"]
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, *settings)
    moved = (tmp_path / "run_1").rename(tmp_path / "moved")
    os.truncate(moved / "checkpoints" / "last.ckpt", 5000)
    resume = [f"--resume={moved}", "--trainer.max_steps=-1"]
    call(monkeypatch, *resume)
    assert "steps 5 to 12" in capsys.readouterr().out
    assert rows(moved) == rows(whole)
    for path in moved.glob("checkpoints/*.ckpt"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="no checkpoint that is intact"):
        call(monkeypatch, *resume)


def test_ranks_do_not_go_on_from_different_steps(monkeypatch):
    """As on machines with disks of their own. Broken by: no comparison in StopAndSave."""
    dist = mock.MagicMock()
    dist.all_gather_object = lambda steps, step, _: steps.extend([step, step + 1])
    monkeypatch.setattr("src.callbacks.stop_and_save.dist", dist)
    with pytest.raises(UserError, match=r"different steps: \[None, None, 4, 5\]"):
        StopAndSave().on_train_start(mock.MagicMock(global_step=4, world_size=2))
