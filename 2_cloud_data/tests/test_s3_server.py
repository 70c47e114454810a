"""The server runs while somebody needs it, for this machine alone, and leaves nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
import s3fs
from src.config import CHAPTER
from src.data import s3_server
from src.data.s3_server import BUCKET, PORTS, SMALL, ServerError, connect, disconnect, join

PATIENCE = 120.0  # seconds; a test that waits this long has failed
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ends weed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """Where a server runs."""
    place = tmp_path_factory.mktemp("s3")
    connect(place)
    yield place
    disconnect(place)


@contextmanager
def connected(folder: Path) -> Iterator[dict[str, str]]:
    variables = connect(folder)
    try:
        yield variables
    finally:
        disconnect(folder)


def files(variables: dict[str, str], secret: str | None = None) -> s3fs.S3FileSystem:
    return s3fs.S3FileSystem(
        key=variables["AWS_ACCESS_KEY_ID"],
        secret=secret or variables["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        skip_instance_cache=True,
    )


def processes(folder: Path) -> tuple[psutil.Process, psutil.Process]:
    """The supervisor and weed."""
    everybody = psutil.process_iter(["cmdline"])
    (weed,) = [p for p in everybody if f"-dir={folder / 'data'}" in (p.info["cmdline"] or [])]
    supervisor = weed.parent()
    assert supervisor
    assert supervisor.cmdline()[-1] == str(folder)
    return supervisor, weed


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; where nobody asks how, it stays behind as a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(*gone: psutil.Process) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := [process for process in gone if runs(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def ports_of(weed: psutil.Process) -> list[int]:
    """Those that it was told to use."""
    options = dict(option.lstrip("-").split("=", 1) for option in weed.cmdline() if "=" in option)
    return [int(options[name]) for name in PORTS]


def assert_nothing_left(folder: Path, ports: list[int]) -> None:
    assert not (folder / "server.env").exists()
    assert not [port for port in ports if list(Path("/tmp").glob(f"seaweedfs-*{port}*"))]


USER = """
import os, signal, sys
from pathlib import Path
from src.data.s3_server import connect
print(connect(Path(sys.argv[1]))["AWS_ENDPOINT_URL"], flush=True)
input()
raise RuntimeError
"""


def use(folder: Path) -> subprocess.Popen:
    """A process that uses the server until somebody ends it or says so; then it fails."""
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(folder)],
        cwd=CHAPTER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_objects_come_back(folder):
    remote = files(connect(folder))
    data = os.urandom(3_000_000)
    remote.pipe_file(f"{BUCKET}/some/object", data)
    assert remote.cat_file(f"{BUCKET}/some/object") == data
    assert remote.cat_file(f"{BUCKET}/some/object", start=10, end=19) == data[10:19]
    assert remote.find(BUCKET) == [f"{BUCKET}/some/object"]


def test_wrong_secret_is_refused(folder):
    with pytest.raises(PermissionError):
        files(connect(folder), secret="wrong").ls(BUCKET)


def test_this_machine_alone_can_reach_it(folder):
    """Every port of every service."""
    for process in processes(folder):
        listening = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert listening
        assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}


def test_secret_is_for_this_user_alone(folder):
    assert (folder / "server.env").stat().st_mode & 0o777 == 0o600
    secret = connect(folder)["AWS_SECRET_ACCESS_KEY"]
    assert len(secret) == 40
    for process in processes(folder):
        assert secret not in " ".join(process.cmdline())
    for path in folder.iterdir():
        if path.is_file() and path.name != "server.env":
            assert secret.encode() not in path.read_bytes(), path.name
    assert (folder / "server.log").stat().st_size


def test_memory_is_bounded_and_no_other_configuration_read(folder):
    environment = processes(folder)[1].environ()
    assert environment["GOMEMLIMIT"] == SMALL["GOMEMLIMIT"]
    assert environment["HOME"] == str(folder)


def test_connecting_again_is_the_same(folder):
    assert connect(folder) == connect(folder)
    assert len(s3_server._connections) == 1


def test_forked_child_cannot_close_its_parents_connection(folder):
    if not (child := os.fork()):
        try:
            disconnect(folder)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    connection = join(folder)
    assert connection
    connection[0].close()


@pytest.mark.slow
def test_two_servers_side_by_side(folder, tmp_path):
    with connected(tmp_path) as other:
        ours = connect(folder)
        assert not set(ours.values()) & set(other.values())
        files(other).pipe_file(f"{BUCKET}/there", b"1")
        assert not files(ours).exists(f"{BUCKET}/there")
        with pytest.raises(PermissionError):
            files(ours | {"AWS_ENDPOINT_URL": other["AWS_ENDPOINT_URL"]}).ls(BUCKET)
        supervisor, weed = processes(tmp_path)
        ports = ports_of(weed)
    # disconnect() returns when all has ended.
    assert not runs(weed)
    assert_nothing_left(tmp_path, ports)
    wait_until_gone(supervisor)
    assert files(ours).ls("") == [BUCKET]


@pytest.mark.slow
def test_server_ends_with_the_last_of_its_users(tmp_path):
    """Two start at the same time; a third joins them."""
    with use(tmp_path) as one, use(tmp_path) as two:
        endpoint = one.stdout.readline()
        assert two.stdout.readline() == endpoint
        supervisor, weed = processes(tmp_path)
        with connected(tmp_path) as variables:
            assert variables["AWS_ENDPOINT_URL"] == endpoint.strip()
            for user in (one, two):
                user.communicate("leave\n")
                # The first thing that the supervisor sees after this is a new connection.
                connection = join(tmp_path)
                assert connection
                connection[0].close()
            files(variables).pipe_file(f"{BUCKET}/x", b"1")
            assert runs(weed)
    wait_until_gone(supervisor, weed)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["exception", "SIGTERM", "SIGINT", "SIGKILL"])
def test_server_ends_with_its_user(tmp_path, ending):
    with use(tmp_path) as user:
        assert user.stdout.readline().startswith("http://127.0.0.1:")
        supervisor, weed = processes(tmp_path)
        ports = ports_of(weed)
        if ending == "exception":
            user.communicate("fail\n")
        else:
            user.send_signal(getattr(signal, ending))
        assert user.wait(PATIENCE) != 0
        wait_until_gone(supervisor, weed)
    assert_nothing_left(tmp_path, ports)


@LINUX
@pytest.mark.slow
def test_weed_ends_with_its_supervisor(tmp_path):
    """SIGKILL leaves the supervisor no time; the next start finds what it has left."""
    with connected(tmp_path) as variables:
        files(variables).pipe_file(f"{BUCKET}/kept", b"1")
        supervisor, weed = processes(tmp_path)
        supervisor.kill()
        wait_until_gone(supervisor, weed)
        assert (tmp_path / "server.env").exists()
    with connected(tmp_path) as variables:
        assert files(variables).cat_file(f"{BUCKET}/kept") == b"1"


@pytest.mark.slow
def test_supervisor_ends_in_order_on_sigterm(tmp_path):
    """What a shutdown of the machine sends."""
    connect(tmp_path)
    supervisor, weed = processes(tmp_path)
    ports = ports_of(weed)
    supervisor.terminate()
    wait_until_gone(supervisor, weed)
    assert_nothing_left(tmp_path, ports)
    disconnect(tmp_path)


@pytest.mark.slow
def test_objects_survive_a_stop_and_a_kill(tmp_path):
    secrets = []
    for number in range(3):
        with connected(tmp_path) as variables:
            remote = files(variables)
            for old in range(number):
                assert remote.cat_file(f"{BUCKET}/{old}") == bytes([old]) * 100_000
            remote.pipe_file(f"{BUCKET}/{number}", bytes([number]) * 100_000)
            secrets.append(variables["AWS_SECRET_ACCESS_KEY"])
            if number == 1:
                supervisor, weed = processes(tmp_path)
                weed.kill()
                wait_until_gone(supervisor, weed)
        assert not (tmp_path / "server.env").exists()
    assert len(set(secrets)) == 3


def answer(door: socket.socket, words: bytes | None) -> None:
    """Another program: it says something, or nothing, to whoever comes, until the door closes."""
    guests = []
    try:
        while True:
            guests.append(door.accept()[0])
            if words:
                guests[-1].sendall(words)
    except OSError:
        for guest in guests:
            guest.close()


@pytest.mark.slow
@pytest.mark.parametrize("words", [None, b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"\0" * 1000])
def test_file_of_a_crashed_server_is_no_obstacle(tmp_path, words):
    """Its port belongs to nobody now, or to another program."""
    door = socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    content = f"AWS_ENDPOINT_URL=http://127.0.0.1:{port}\nSUPERVISOR_PORT={port}\nSUPERVISOR_ID=ab"
    (tmp_path / "server.env").write_text(content)
    thread = threading.Thread(target=answer, args=(door, words))
    with closing(door):
        if words is None:
            door.close()
        else:
            thread.start()
        try:
            with connected(tmp_path) as variables:
                assert files(variables).ls("") == [BUCKET]
        finally:
            if words is not None:
                door.shutdown(socket.SHUT_RDWR)  # which wakes accept() up
                thread.join()


@pytest.mark.parametrize("content", ["", "SUPERVISOR_PORT=x\n", "SUPERVISOR_PORT=99999\n", "= =\0"])
def test_file_that_says_nothing_useful(tmp_path, content):
    (tmp_path / "server.env").write_text(content)
    assert join(tmp_path) is None


@pytest.mark.slow
def test_whoever_comes_while_the_last_one_leaves(tmp_path):
    """The newcomer holds the lock, but has not knocked yet."""
    connect(tmp_path)
    link, _ = s3_server._connections.pop((tmp_path, os.getpid()))
    supervisor, weed = processes(tmp_path)
    with s3_server.FileLock(tmp_path / "lock"):
        link.shutdown(socket.SHUT_WR)
        # The supervisor has seen that the last one leaves when it wants the lock, or looks again.
        link.settimeout(1)
        with pytest.raises(TimeoutError):
            link.recv(1)
        newcomer = join(tmp_path)
    link.close()
    assert newcomer
    with closing(newcomer[0]):
        assert files(newcomer[1]).ls("") == [BUCKET]
        assert runs(weed)
    wait_until_gone(supervisor, weed)


WRAPPER = """
import runpy, sysconfig
sysconfig.get_path = lambda name: {scripts!r}
namespace = runpy.run_path({module!r})
globals().update(namespace)
namespace["supervise"].__globals__["START_TIMEOUT"] = 0.3
namespace["signal"].signal(15, lambda *_: namespace["sys"].exit(143))
try:
    supervise(Path(sys.argv[1]))
except ServerError as error:
    print(error, flush=True)
    sys.exit(1)
"""
BROKEN = {
    "ends at once": ("echo out of order >&2; exit 1", "weed ended while it started"),
    "never answers": ("exec sleep 1000", "weed does not answer"),
    "is not there": (None, "the supervisor ended"),
}


@pytest.fixture(params=BROKEN)
def broken(request, tmp_path) -> tuple[Path, str]:
    """A supervisor whose weed does not start, and what it is to say."""
    command, message = BROKEN[request.param]
    if command:
        (tmp_path / "weed").write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / "weed").chmod(0o700)
    script = tmp_path / "supervisor.py"
    script.write_text(WRAPPER.format(scripts=str(tmp_path), module=s3_server.__file__))
    return script, message


def test_weed_that_does_not_start(monkeypatch, broken, tmp_path):
    script, message = broken
    monkeypatch.setattr(s3_server, "__file__", str(script))
    folder = tmp_path / "s3"
    with pytest.raises(ServerError, match=f"^{message}.*; see {folder / 'server.log'}$") as caught:
        connect(folder)
    assert "\n" not in str(caught.value)
    assert (folder, os.getpid()) not in s3_server._connections
    assert not (folder / "server.env").exists()


COMMAND = """
import sys, s3_server, src.data.s3_server as library
library.__file__ = sys.argv.pop(1)
sys.exit(s3_server.main())
"""


def test_command_names_the_log_when_weed_does_not_start(broken, tmp_path):
    script, message = broken
    command = [sys.executable, "-c", COMMAND, str(script), f"--folder={tmp_path / 's3'}"]
    done = subprocess.run(
        command, cwd=CHAPTER, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert re.fullmatch(rf"error: {message}.*; see {tmp_path}/s3/server\.log\n", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_runs_until_it_is_interrupted(tmp_path, number):
    command = [sys.executable, "s3_server.py", "--folder", os.path.relpath(tmp_path, CHAPTER)]
    with subprocess.Popen(
        command, cwd=CHAPTER, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = [process.stdout.readline()]
        while not lines[-1].startswith("Ctrl-C"):
            assert lines[-1], process.stderr.read()
            lines.append(process.stdout.readline())
        supervisor, weed = processes(tmp_path)
        connection = join(tmp_path)
        assert connection
        with connection[0]:
            variables = connection[1]
        assert variables["AWS_SECRET_ACCESS_KEY"] not in "".join(lines)
        assert lines[0] == f"S3 server  {variables['AWS_ENDPOINT_URL']}, bucket {BUCKET}\n"
        # The line that it prints, in a shell: an S3 client needs nothing else.
        (line,) = [line for line in lines if line.lstrip().startswith("set -a")]
        client = "import s3fs; print(s3fs.S3FileSystem().ls(''))"
        done = subprocess.run(
            ["sh", "-c", f'{line.strip()}; {sys.executable} -W ignore -c "{client}"'],
            cwd=CHAPTER,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == f"['{BUCKET}']\n", done.stderr
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert not process.stderr.read()
    wait_until_gone(supervisor, weed)
