"""Run SeaweedFS for as long as somebody is connected to this process; s3_server.py starts it.

  python s3_supervisor.py FOLDER BUCKET

It stands alone and imports little, so that a server is there within a second or two.
"""

import contextlib
import ctypes
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

START_TIMEOUT = 30.0  # seconds
STOP_TIMEOUT = 0.5  # it waits for seconds, for connections that nobody uses any more
SMALL = {
    # weed may use 2 GB after many writes; Go's collector works harder from this limit on.
    "GOMEMLIMIT": "512MiB",
    "-s3.readerCacheSizeMB": "64",
    "-s3.cacheCapacityMB": "0",
    "-s3.concurrentUploadLimitMB": "64",
    "-volume.concurrentUploadLimitMB": "64",
    "-volume.index": "leveldb",
}
OFF = [
    "-admin.ui=false",
    "-webdav=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.iam=false",
    "-master.telemetry=false",  # else it reports to its makers
]
PORTS = [
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port"),
    *("filer.port.grpc", "s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc", "metricsPort"),
]


def supervise(folder: Path, bucket: str) -> None:
    """Run the server for as long as somebody is connected."""
    identity = secrets.token_hex(16)
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        running(folder, bucket) as (server, variables),
        selectors.DefaultSelector() as selector,
    ):
        port = door.getsockname()[1]
        variables |= {"SUPERVISOR_PORT": str(port), "SUPERVISOR_ID": identity}
        variables |= {"SERVER_HOST": socket.gethostname()}  # the folder may be on a shared disk
        publish(folder / "server.env", variables)
        try:
            print("ready", flush=True)
            selector.register(door, selectors.EVENT_READ)
            deadline: float | None = time.monotonic() + START_TIMEOUT  # for the first one to come
            leaving: list[socket.socket] = []
            while server.poll() is None:
                for found, _ in selector.select(timeout=0.5):
                    if found.fileobj is door:
                        guest, _ = door.accept()
                        guest.sendall(identity.encode())
                        selector.register(guest, selectors.EVENT_READ)
                        deadline = None
                    else:  # it says nothing: there is something to read when it has closed
                        selector.unregister(found.fileobj)
                        assert isinstance(found.fileobj, socket.socket)
                        leaving.append(found.fileobj)
                if len(selector.get_map()) > 1:
                    for guest in leaving:
                        guest.close()
                    leaving.clear()
                elif deadline is None or time.monotonic() > deadline:
                    # Nobody may come in between the last look and the end. Whoever has the lock
                    # is about to come in, and waits for an answer: look again.
                    with contextlib.suppress(Timeout), FileLock(folder / "lock", timeout=0):
                        if not any(f.fileobj is door for f, _ in selector.select(timeout=0)):
                            (folder / "server.env").unlink()
                            end(server)
                            break
        finally:
            (folder / "server.env").unlink(missing_ok=True)


@contextlib.contextmanager
def running(folder: Path, bucket: str) -> Iterator[tuple[subprocess.Popen, dict[str, str]]]:
    """The server, ready to take requests, and its address and credentials; stopped at the end."""
    for _ in range(3):
        ports = free_ports()
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3.port']}",
            "AWS_ACCESS_KEY_ID": secrets.token_hex(10),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "METRICS_URL": f"http://127.0.0.1:{ports['metricsPort']}/metrics",
        }
        server = launch(folder, bucket, ports, variables)
        try:
            # Between the choice of a port and its use somebody else may take it: try again.
            if wait_until_ready(server, ports, bucket):
                yield server, variables
                return
            if server.poll() is None:
                raise RuntimeError("weed does not answer")
        finally:
            end(server)
            for port in ports.values():  # weed leaves some of its sockets behind
                for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    leftover.unlink(missing_ok=True)
    raise RuntimeError("weed ended while it started")


def launch(
    folder: Path, bucket: str, ports: Mapping[str, int], secret: Mapping[str, str]
) -> subprocess.Popen:
    """Start weed."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    options = [f"{name}={value}" for name, value in SMALL.items() if name.startswith("-")]
    return subprocess.Popen(
        [
            Path(sysconfig.get_path("scripts")) / "weed",
            "-logtostderr=true",
            "mini",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-bucket={bucket}",
            *OFF,
            *options,
            *(f"-{name}={port}" for name, port in ports.items()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        cwd=folder,
        # HOME: it would read the configuration of another SeaweedFS there.
        env={"HOME": str(folder), "GOMEMLIMIT": SMALL["GOMEMLIMIT"], **secret},
        preexec_fn=die_with_parent,
    )


def die_with_parent() -> None:
    """On Linux: end this process when its parent is killed, which then can end nothing itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def wait_until_ready(server: subprocess.Popen, ports: Mapping[str, int], bucket: str) -> bool:
    """Whether the bucket exists and a write has a place to go."""
    questions = {
        f"http://127.0.0.1:{ports['master.port']}/dir/assign": b'"fid"',
        f"http://127.0.0.1:{ports['filer.port']}/buckets/{bucket}/": b"",
        f"http://127.0.0.1:{ports['s3.port']}/healthz": b"",
    }
    deadline = time.monotonic() + START_TIMEOUT
    while questions and server.poll() is None and time.monotonic() < deadline:
        url, expected = next(iter(questions.items()))
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                if expected in response.read():
                    del questions[url]
                    continue
        except (OSError, ValueError):
            pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.02)
    return not questions


def end(server: subprocess.Popen) -> None:
    """Stop the server. What it has acknowledged is on disk already, so it may be killed."""
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def free_ports() -> dict[str, int]:
    """A free port of 127.0.0.1 for each of weed's services."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        return {name: s.getsockname()[1] for name, s in zip(PORTS, sockets, strict=True)}


def publish(path: Path, variables: Mapping[str, str]) -> None:
    """Write a file that this user alone may read, whole or not at all."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())
    new.replace(path)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        supervise(Path(sys.argv[1]), sys.argv[2])
    except RuntimeError as error:
        print(error, flush=True)
        sys.exit(1)
