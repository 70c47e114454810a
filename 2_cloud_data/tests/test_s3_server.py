"""The server runs while somebody needs it, for this machine alone, and leaves nothing behind."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from src.data import s3_server
from src.data.s3_server import BUCKET, ServerError, connect, disconnect, join
from src.data.s3_supervisor import SMALL

from tests.s3_processes import (
    PATIENCE,
    assert_nothing_left,
    connected,
    files,
    ports_of,
    processes,
    runs,
    use,
    wait_until_gone,
)

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ends weed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """Where a server runs."""
    place = tmp_path_factory.mktemp("s3")
    connect(place)
    yield place
    disconnect(place)


@pytest.mark.slow(copies=True)
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
    assert len([place for place, _ in s3_server._connections if place == folder]) == 1


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


def test_another_machine_has_no_use_for_it(tmp_path):
    """Two servers on the files of one, on a shared disk, would ruin them."""
    (tmp_path / "server.env").write_text("SERVER_HOST=node-7\nSUPERVISOR_PORT=1\n")
    with pytest.raises(ServerError, match="runs on node-7, for that machine alone"):
        connect(tmp_path)


@pytest.mark.slow
def test_two_servers_side_by_side(folder, tmp_path):
    with connected(tmp_path) as other:
        ours = connect(folder)
        assert {k for k in ours if ours[k] == other[k]} == {"SERVER_HOST"}
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


@pytest.mark.slow
def test_connecting_again_after_the_server_was_killed(tmp_path):
    """The same process gets a new one, and what it has written before."""
    with connected(tmp_path) as variables:
        files(variables).pipe_file(f"{BUCKET}/kept", b"1")
        supervisor, weed = processes(tmp_path)
        weed.kill()
        wait_until_gone(supervisor, weed)
        again = connect(tmp_path)
        assert again["AWS_ENDPOINT_URL"] != variables["AWS_ENDPOINT_URL"]
        assert files(again).cat_file(f"{BUCKET}/kept") == b"1"


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
