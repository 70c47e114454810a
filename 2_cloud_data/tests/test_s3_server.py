"""The embedded server: one for all processes, and gone with the last of them."""

import os
import runpy
import signal
import subprocess
import sys
from ast import literal_eval
from pathlib import Path
from unittest.mock import Mock

import fsspec
import psutil
import pytest

from src.config import CHAPTER
from src.data import s3_server
from tests.runs import start, wait_for_step

pytestmark = pytest.mark.slow
USE = (
    "import sys; from src.data.s3_server import connect; print(connect(), flush=True); "
)


def use(program: str) -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", USE + program], cwd=CHAPTER, **pipes)


def servers(folder: Path) -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if f"-dir={folder}/data" in (p.info["cmdline"] or [])]


def opened(process: psutil.Process, path: Path) -> bool:
    """Whether it has this file open; not yet, while it begins."""
    return str(path) in {file.path for file in process.open_files()}


def wait_until_gone(processes: list[psutil.Process]) -> None:
    assert not psutil.wait_procs(processes, timeout=10)[1]


def test_two_processes_share_it_and_the_last_one_ends_it(monkeypatch, tmp_path):
    """Killed: nothing can be cleaned up then. Broken by: no flock in connect()."""
    monkeypatch.setenv("S3_FOLDER", str(tmp_path))
    users = [use("sys.stdin.read()"), use("sys.stdin.read()")]
    first, second = (user.stdout.readline() for user in users)
    assert first == second
    (server,) = servers(tmp_path)
    family = [server, server.parent()]
    assert {c.laddr.ip for c in server.net_connections() if c.status == "LISTEN"} == {
        "127.0.0.1"
    }
    # keys
    assert all(
        p.stat().st_mode & 0o077 == 0 for p in tmp_path.iterdir() if "en" in p.name
    )
    users[0].kill()
    words = [
        sys.executable,
        "-m",
        "src.data.s3_server",
        "--",
        "printenv",
        "AWS_ENDPOINT_URL",
    ]
    assert subprocess.check_output(words, cwd=CHAPTER, text=True).strip() in first
    users[1].kill()
    wait_until_gone(family)
    assert first not in use("").communicate()[0]  # a new one, with new keys
    wait_until_gone(servers(tmp_path))


def test_a_server_that_dies_comes_back(monkeypatch, tmp_path):
    """At its address, with its objects; not if the keeper dies. Broken by: no loop, no guard."""
    monkeypatch.setenv("S3_FOLDER", str(tmp_path))
    user = use("sys.stdin.read()")
    address = user.stdout.readline()
    server = literal_eval(address)
    storage = {
        "endpoint_url": server["AWS_ENDPOINT_URL"],
        "key": server["AWS_ACCESS_KEY_ID"],
        "secret": server["AWS_SECRET_ACCESS_KEY"],
    }
    bucket = fsspec.filesystem("s3", skip_instance_cache=True, **storage)
    bucket.pipe("embedded/a", b"1")
    (weed,) = servers(tmp_path)
    keeper = weed.parent()
    keeper.terminate()  # as SLURM does, when a job's last uploads begin
    weed.kill()
    assert use("").communicate()[0] == address
    assert bucket.cat("embedded/a") == b"1"
    (weed,) = servers(tmp_path)
    keeper.kill()
    wait_until_gone([weed])
    user.kill()


def test_a_server_that_is_slow_stays_the_only_one(monkeypatch, tmp_path):
    """It does not answer in time. Broken by: no lock in keep() (two on the same data)."""
    monkeypatch.setenv("S3_FOLDER", str(tmp_path))
    user = use("sys.stdin.read()")
    address = user.stdout.readline()
    (weed,) = servers(tmp_path)
    weed.suspend()
    late = use("")
    while not (standby := psutil.Process(late.pid).children()):
        assert late.poll() is None
    late_keeper = standby[0]
    while late_keeper.status() != psutil.STATUS_SLEEPING or not opened(
        late_keeper, tmp_path / "keeper"
    ):
        assert late_keeper.is_running()
    assert servers(tmp_path) == [weed]
    weed.resume()
    assert late.communicate()[0] == address
    user.kill()
    wait_until_gone([weed, late_keeper])


def test_a_server_that_never_answers_is_one_line(monkeypatch, tmp_path):
    """Broken by: no deadline in connect(): it would wait for ever."""
    monkeypatch.setattr(s3_server, "FOLDER", tmp_path)
    monkeypatch.setattr(s3_server, "ENV_FILE", tmp_path / "server.env")
    monkeypatch.setattr(s3_server, "START_SECONDS", 0.1)
    silent = Mock(**{"return_value.poll.return_value": None})
    monkeypatch.setattr(subprocess, "Popen", silent)
    with pytest.raises(OSError, match=r"does not start; see .*server\.log"):
        s3_server.connect()
    silent.assert_called_once()


def test_each_machine_has_its_own_folder(monkeypatch):
    """Nodes of a cluster share the chapter's folder. Broken by: no gethostname in OUTPUT."""
    monkeypatch.delenv("S3_FOLDER")
    folders = []
    for platform, name in (("linux", "node-1"), ("linux", "node-2"), ("darwin", "x")):
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.setattr("socket.gethostname", lambda name=name: name)
        folders.append(runpy.run_path(s3_server.__file__)["FOLDER"])
    # A Mac's name changes with the network.
    names = ("node-1", "node-2", "mac")
    assert folders == [CHAPTER / "output" / "s3" / name for name in names]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_training_leaves_no_process_behind(monkeypatch, tmp_path, number):
    """Broken by: no start_new_session in connect(), or no start_forkserver() in Loaders."""
    folder = tmp_path.parent / "s3"  # the store is built once, for both
    monkeypatch.setenv("S3_FOLDER", str(folder))
    settings = [
        f"-c={CHAPTER}/tests/cloud.yaml",
        "--data.num_workers=1",
        "--trainer.max_epochs=99",
    ]
    process = start(tmp_path, *settings)
    # An epoch; then the validation starts.
    wait_for_step(process, tmp_path / "run_1", 38)
    family = psutil.Process(process.pid).children(recursive=True)  # the server, too
    assert os.getpgid(servers(folder)[0].pid) != process.pid  # Ctrl-C does not reach it
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    wait_until_gone(family)
