"""The embedded server: one for all processes, and gone with the last of them."""

import os
import runpy
import signal
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import fsspec
import psutil
import pytest

from src.data import s3_server
from src.run.config import CHAPTER
from tests.runs import start, wait_for_step

pytestmark = pytest.mark.slow
USER = """import sys; from src.data.s3_server import connect
print(connect(), flush=True); sys.stdin.read()"""


def begin(*arguments: str) -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], cwd=CHAPTER, **pipes)


def servers(folder: Path) -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if f"-dir={folder}/data" in (p.info["cmdline"] or [])]


def waits_for(process: psutil.Process, path: Path) -> bool:
    """Whether it has opened this file, and sleeps; not yet, while it begins."""
    files = [file.path for file in process.open_files()]
    is_waiting = psutil.MACOS or process.status() == psutil.STATUS_SLEEPING
    return str(path) in files and is_waiting  # a Mac does not tell


def wait_until_gone(processes: list[psutil.Process]) -> None:
    assert not psutil.wait_procs(processes, timeout=100)[1]


def test_users_share_one_server_and_the_last_one_ends_it(monkeypatch, tmp_path):
    """Whatever is killed. Broken by: no flock in connect(); no loop, lock or guard in keep()."""
    monkeypatch.setenv("S3_FOLDER", str(tmp_path))
    users = [begin("-c", USER), begin("-c", USER)]
    address, same_address = (user.stdout.readline() for user in users)
    assert address == same_address
    (weed,) = servers(tmp_path)
    keeper = weed.parent()
    listening = [c for c in weed.net_connections() if c.status == "LISTEN"]
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}

    # It does not answer in time: who comes late starts a keeper, but no second server.
    weed.suspend()
    late = begin("-c", USER)
    while not (keepers := psutil.Process(late.pid).children()):
        assert late.poll() is None
    while not waits_for(keepers[0], tmp_path / "keeper"):
        assert keepers[0].is_running()
    assert servers(tmp_path) == [weed]
    weed.resume()
    assert late.communicate()[0] == address

    # A server that dies comes back, at its address, with its objects.
    names = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    names |= {"AWS_ENDPOINT_URL": "endpoint_url"}
    server = literal_eval(address)
    options = {names[name]: value for name, value in server.items()}
    bucket = fsspec.filesystem("s3", skip_instance_cache=True, **options)
    bucket.pipe("embedded/a", b"1")
    keeper.terminate()  # as SLURM does, when a job's last uploads begin
    weed.kill()
    wait_until_gone([weed])
    while not s3_server.answers(f"{server['AWS_ENDPOINT_URL']}/healthz"):
        assert keeper.status() != psutil.STATUS_ZOMBIE
    assert bucket.cat("embedded/a") == b"1"

    # If the keeper dies, so does the server; the keeper that has waited starts another one.
    (weed,) = servers(tmp_path)
    keeper.kill()
    wait_until_gone([weed])
    for user in users:
        user.kill()  # nothing can be cleaned up then
    wait_until_gone(keepers)
    assert not servers(tmp_path)


def test_each_machine_has_its_own_folder(monkeypatch):
    """Nodes of a cluster share the chapter's folder. Broken by: no gethostname in OUTPUT."""
    monkeypatch.delenv("S3_FOLDER")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("socket.gethostname", lambda: "node-2")
    folder = runpy.run_path(s3_server.__file__)["FOLDER"]
    assert folder == CHAPTER / "output" / "s3" / "node-2"


def test_a_training_leaves_no_process_behind(monkeypatch, tmp_path):
    """After Ctrl-C. Broken by: no start_new_session in connect(), or no start_forkserver()."""
    monkeypatch.setenv("S3_FOLDER", str(tmp_path / "s3"))
    settings = ["--data.num_workers=1", "--trainer.max_epochs=99"]
    process = start(tmp_path, f"-c={CHAPTER}/tests/cloud.yaml", *settings)
    # An epoch; then the validation starts.
    wait_for_step(process, tmp_path / "run_1", 38)
    family = psutil.Process(process.pid).children(recursive=True)  # the server, too
    (weed,) = servers(tmp_path / "s3")
    assert os.getpgid(weed.pid) != process.pid  # Ctrl-C does not reach it
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=500)
    assert process.returncode == 128 + signal.SIGINT
    wait_until_gone(family)


# As a training begins on some ranks, without the seconds of its other imports; the event comes when
# the arrays are there, and before their values.
OPEN_DEFAULT = """import os, signal, sys
from src.run.launch import has_rank, launch
from src.run.signals import exit_at_signals
num_ranks, event = int(sys.argv[1]), sys.argv[2]
num_ranks == 1 or has_rank() or sys.exit(launch(num_ranks))
exit_at_signals()
from src.data import build
from src.data.usecase_cloud_dataset import CloudDataset
size_of = build.size_of
def with_event(fields):
    if event == "kill":
        os.killpg(0, signal.SIGKILL)
    if event == "signal":
        signal.raise_signal(signal.SIGTERM)
    return size_of(fields)
build.size_of = with_event
print(len(CloudDataset("train")))"""


def test_a_killed_build_of_the_default_store_begins_again(monkeypatch, tmp_path):
    """By the same command; all ranks are killed, then one of them gets a signal.

    After any write: test_stores.py. Broken by: open_or_begin that takes no group which is there.
    """
    monkeypatch.setenv("S3_FOLDER", str(tmp_path))

    def build(num_ranks: int, event: str) -> subprocess.CompletedProcess:
        words = [sys.executable, "-c", OPEN_DEFAULT, str(num_ranks), event]
        pipes = {"capture_output": True, "text": True, "start_new_session": True}
        return subprocess.run(words, cwd=CHAPTER, **pipes)

    assert build(2, "kill").returncode == -signal.SIGKILL
    assert build(2, "signal").returncode == 128 + signal.SIGTERM
    whole = build(1, "")
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.splitlines()[-1] == "2508"
