"""The queue behind the uploads: what is damaged stays out, the newest wins, an outage ends."""

import threading
from pathlib import Path

import pytest
from src.cloud_run import CloudRun
from src.data.s3_proxy import Fault
from src.uploader import Uploader

from tests.cloud_runs import copies, save, writer
from tests.cloud_runs import path as path  # fixtures
from tests.cloud_runs import run as run
from tests.cloud_server import proxy as proxy
from tests.cloud_server import server as server


def offered(copy: CloudRun, run: Path, path: Path, step: int) -> Uploader:
    """What becomes of a file that is offered."""
    uploader = Uploader(copy, run, 20.0)
    uploader.offer(path, step)
    uploader.flush(60)
    uploader.close()
    return uploader


@pytest.mark.slow(copies=True)
def test_what_is_damaged_on_the_disk_is_not_uploaded(server, path, run):
    """Nor is that tried again: it would not mend it."""
    file = save(run, 2)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    uploader = offered(writer(path), run, file, 2)
    assert uploader.problem == "last.ckpt is damaged on this disk, and is not uploaded"
    assert (uploader.failures, copies(path)) == (0, [])


def test_half_a_file_of_another_writer_is_not_uploaded(server, path, run):
    """Without a manifest, as with Lightning's own CheckpointIO; its step is the training's."""
    whole = run / "checkpoints" / "last.ckpt"
    (run / "checkpoints" / "manifest.json").unlink()
    copy = writer(path)
    offered(copy, run, whole, 4)
    half = run / "checkpoints" / "half.ckpt"
    half.write_bytes(whole.read_bytes()[:5000])
    assert "half.ckpt is not whole" in offered(copy, run, half, 5).problem
    assert copies(path) == [("last.ckpt", 4)]


def test_the_newest_wins_and_the_queue_is_bounded(server, path, run, monkeypatch):
    """While one upload takes its time, a hundred checkpoints come; one of them is next."""
    copy = writer(path)
    begun, go_on = threading.Event(), threading.Event()
    original = copy.save

    def slow(*arguments):
        begun.set()
        assert go_on.wait(60)
        return original(*arguments)

    monkeypatch.setattr(copy, "save", slow)
    uploader = Uploader(copy, run, 20.0)
    uploader.offer(run / "checkpoints" / "last.ckpt", 1)
    assert begun.wait(60)
    for step in range(2, 102):
        uploader.offer(save(run, step), step)
        assert len(list((run / "checkpoints" / ".uploads").iterdir())) <= 2
    go_on.set()
    assert uploader.flush(60)
    assert copies(path) == [("last.ckpt", 101), ("last.ckpt", 1)]
    assert uploader.superseded == 99
    uploader.close()
    assert not (run / "checkpoints" / ".uploads").exists()


def test_an_outage_ends_and_the_newest_arrives(proxy, path, run):
    copy = writer(path)
    uploader = Uploader(copy, run, 0.5)
    proxy.faults.append(Fault("reset", times=None))
    uploader.offer(run / "checkpoints" / "last.ckpt", 1)
    with uploader.changed:
        assert uploader.changed.wait_for(lambda: uploader.failures, 60)
    uploader.offer(save(run, 2), 2)
    proxy.faults.clear()
    assert uploader.flush(60)
    uploader.close()
    assert copies(path)[0] == ("last.ckpt", 2)
