"""Helpers of the tests of the S3 server: its processes, its ports, programs that use it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import s3fs
from src.config import CHAPTER
from src.data.s3_server import connect, disconnect
from src.data.s3_supervisor import PORTS

PATIENCE = 120.0  # seconds; a test that waits this long has failed


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
    assert supervisor.cmdline()[-2] == str(folder)
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
