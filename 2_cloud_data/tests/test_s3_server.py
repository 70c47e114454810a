"""The embedded server: one for all processes, and gone with the last of them."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from src.config import CHAPTER

from tests.runs import start, wait_for_step

pytestmark = pytest.mark.slow
WORDS = [sys.executable, "-m", "src.data.s3_server"]
USE = "import sys; from src.data.s3_server import connect; print(connect(), flush=True); "


def use(folder, program: str) -> subprocess.Popen:
    """A process that connects to the server of a folder, and then does something."""
    env = os.environ | {"S3_FOLDER": str(folder)}
    settings = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", USE + program], cwd=CHAPTER, env=env, **settings)


def servers(folder) -> list[psutil.Process]:
    """All processes of a folder's server."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environment = process.info["environ"] or {}
        words = process.info["cmdline"] or []
        is_weed = f"-dir={folder}/data" in words
        if is_weed or (words[-1:] == ["keep"] and str(folder) in environment.values()):
            found.append(process)
    return found


def wait_until_gone(folder) -> None:
    _, alive = psutil.wait_procs(servers(folder), timeout=10)
    assert not alive


def test_two_processes_share_it_and_the_last_one_ends_it(tmp_path):
    """Killed: nothing can be cleaned up then. Broken by: no flock in connect()."""
    users = [use(tmp_path, "sys.stdin.read()") for _ in range(2)]
    first, second = (user.stdout.readline() for user in users)
    assert first == second
    assert len(servers(tmp_path)) == 2  # weed and its keeper
    users[0].kill()
    users[0].wait()
    again = use(tmp_path, "")
    assert again.communicate()[0] == first
    assert len(servers(tmp_path)) == 2
    users[1].kill()
    wait_until_gone(tmp_path)
    assert first not in use(tmp_path, "").communicate()[0]  # a new one, with new keys
    wait_until_gone(tmp_path)


def test_a_command_finds_it_on_127_0_0_1_only(tmp_path):
    """And what it leaves of its keys can be read by their owner only."""
    env = os.environ | {"S3_FOLDER": str(tmp_path)}
    script = 'import os; print(os.environ["AWS_ENDPOINT_URL"], end="")'
    url = subprocess.check_output(
        [*WORDS, "--", sys.executable, "-c", script], env=env, cwd=CHAPTER
    )
    assert url.startswith(b"http://127.0.0.1:")
    process = use(tmp_path, "sys.stdin.read()")
    process.stdout.readline()
    listening = [c for p in servers(tmp_path) for c in p.net_connections() if c.status == "LISTEN"]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    assert (tmp_path / "server.env").stat().st_mode & 0o077 == 0
    process.communicate("")
    wait_until_gone(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_training_leaves_no_process_behind(monkeypatch, tmp_path, number):
    """Broken by: no start_new_session in connect(): Ctrl-C would stop the server first."""
    monkeypatch.setenv("S3_FOLDER", str(tmp_path / "s3"))
    settings = [f"-c={CHAPTER}/tests/cloud.yaml", "--data.num_workers=1", "--trainer.max_epochs=99"]
    process = start(tmp_path, *settings)
    wait_for_step(process, tmp_path / "run_1", 20)
    family = [process, *psutil.Process(process.pid).children(recursive=True)]
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    _, alive = psutil.wait_procs(family[1:], timeout=10)
    assert not alive
    wait_until_gone(tmp_path / "s3")
