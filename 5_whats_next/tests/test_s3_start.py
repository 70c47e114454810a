"""The server starts beside what a crash has left behind, or says why it does not."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from src.config import CHAPTER
from src.data import s3_server
from src.data.s3_server import BUCKET, SUPERVISOR, ServerError, connect, join

from tests.s3_processes import (
    PATIENCE,
    connected,
    files,
    processes,
    wait_until_gone,
)


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
def test_file_of_a_crashed_server_is_no_obstacle(tmp_path, monkeypatch, words):
    """Its port belongs to nobody now, or to another program."""
    create = socket.create_connection  # it would wait five seconds for a word
    monkeypatch.setattr(socket, "create_connection", lambda place, timeout: create(place, 0.5))
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


WRAPPER = """
import runpy, sysconfig
sysconfig.get_path = lambda name: {scripts!r}
namespace = runpy.run_path({module!r})
globals().update(namespace)
namespace["supervise"].__globals__["START_TIMEOUT"] = 0.3
namespace["signal"].signal(15, lambda *_: namespace["sys"].exit(143))
try:
    supervise(Path(sys.argv[1]), sys.argv[2])
except RuntimeError as error:
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
    script.write_text(WRAPPER.format(scripts=str(tmp_path), module=str(SUPERVISOR)))
    return script, message


def test_weed_that_does_not_start(monkeypatch, broken, tmp_path):
    script, message = broken
    monkeypatch.setattr(s3_server, "SUPERVISOR", script)
    folder = tmp_path / "s3"
    with pytest.raises(ServerError, match=f"^{message}.*; see {folder / 'server.log'}$") as caught:
        connect(folder)
    assert "\n" not in str(caught.value)
    assert (folder, os.getpid()) not in s3_server._connections
    assert not (folder / "server.env").exists()


COMMAND = """
import sys, s3_server, src.data.s3_server as library
library.SUPERVISOR = sys.argv.pop(1)
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
