"""An S3 server on this machine: the first process that needs it starts it, the last one ends it."""

# SeaweedFS, one binary, listens on 127.0.0.1 alone. Each user of the server holds a shared lock on
# the file `users`, which the operating system takes back however the process ends, also after
# SIGKILL. A keeper, this file as a program, asks for the exclusive lock: it gets it when the last
# user has gone, and stops the server. A server that dies before is started again, at the same
# address; if the keeper is killed, the server goes too. Another machine does not reach it.
#
# Only the S3 port asks for the keys. The server's other ports, on 127.0.0.1 as well, answer every
# user of this machine, who can read, change and delete all objects (curl FILER/buckets/embedded/,
# weed shell). SeaweedFS's JWT keys would close HTTP, but not gRPC: `weed backup` copies the objects
# all the same. So keep nothing secret here on a machine that you share.

import errno
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from dotenv import dotenv_values
from filelock import FileLock

BUCKET = "embedded"
# Of this machine alone: nodes of a cluster may share the folder of the chapter. The name of a Mac
# changes with the network.
MACHINE = "mac" if sys.platform == "darwin" else socket.gethostname()
OUTPUT = Path(__file__).resolve().parents[2] / "output" / "s3" / MACHINE
FOLDER = Path(os.environ.get("S3_FOLDER") or OUTPUT)
SERVICES = ("s3", "filer", "master", "volume", "admin")
PORTS = [f"{service}.port{kind}" for service in SERVICES for kind in ("", ".grpc")]
OPTIONS = [
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    f"-bucket={BUCKET}",
    "-master.telemetry=false",
    "-admin.ui=false",
    "-webdav=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
]
START_SECONDS = 60  # it takes a second or two
ENV_FILE = FOLDER / "server.env"
CREDENTIALS = FOLDER / "credentials"  # the same keys as an AWS profile, for TensorStore
# The file that this process holds the lock on, once it has connected.
_users_lock: list[int] = []


def connect() -> dict[str, str]:
    """Start the server unless it runs, and keep it until this process ends.

    Returns AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, as S3 clients read them.
    Raises OSError if it does not start, or does not answer in START_SECONDS.
    """
    # A cluster's proxy does not know this machine's 127.0.0.1. All clients read this variable.
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    if "127.0.0.1" not in others:
        os.environ["no_proxy"] = f"127.0.0.1,{others}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / "lock"):
        # Of ranks that come at the same time, one starts it.
        if not _users_lock:
            _users_lock.append(os.open(FOLDER / "users", os.O_CREAT | os.O_RDWR))
            # Waits while the last one is stopped.
            fcntl.flock(_users_lock[0], fcntl.LOCK_SH)
        keeper = None
        deadline = time.monotonic() + START_SECONDS
        # Without a file there is no address, and nothing answers.
        while not answers(f"{dotenv_values(ENV_FILE).get('AWS_ENDPOINT_URL')}/healthz"):
            has_ended = keeper and keeper.poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise OSError(
                    f"the S3 server does not start; see {FOLDER / 'server.log'}"
                )
            if keeper is None:
                print("S3        a server starts on this machine", file=sys.stderr)
                with (FOLDER / "server.log").open("wb") as log:
                    # A new session, because Ctrl-C, which saves a checkpoint, must not reach it.
                    command = [sys.executable, __file__]
                    keeper = subprocess.Popen(
                        command, stdout=log, stderr=log, start_new_session=True
                    )
            time.sleep(0.05)
    return {name: value for name, value in dotenv_values(ENV_FILE).items() if value}


def answers(url: str) -> bool:
    """Whether this address answers with status 200."""
    try:
        return bool(urllib.request.urlopen(url, timeout=5).status == 200)
    except (OSError, ValueError):
        return False


def free_ports() -> dict[str, int]:
    """A port that nobody listens on, for each of PORTS."""
    free: set[int] = set()
    while len(free) < len(PORTS):
        # Below 32768: Linux gives higher ones to any process that asks, perhaps before the server
        # listens, or while it starts again.
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                free.add(port)
    return dict(zip(PORTS, free, strict=True))


@contextmanager
def running_weed(
    ports: dict[str, int], keys: dict[str, str], keeper_lock: int
) -> Generator[subprocess.Popen]:
    """The server's process, with one user who has these keys; it takes a second or two."""
    (FOLDER / "data").mkdir(exist_ok=True)
    weed_file = f"{sysconfig.get_path('scripts')}/weed"
    command = [
        weed_file,
        "-logtostderr=true",
        "mini",
        *OPTIONS,
        f"-dir={FOLDER / 'data'}",
    ]
    command += [f"-{name}={port}" for name, port in ports.items()]
    # It writes into HOME, and takes no setting or proxy of this user. Go frees memory earlier.
    environment = {"HOME": str(FOLDER), "GOMEMLIMIT": "512MiB", **keys}
    weed = subprocess.Popen(command, stdout=sys.stderr, env=environment)
    # This shell reads a pipe that closes if the keeper is killed, and then kills the server. It has
    # the keeper's lock as well, so that no other server begins before.
    guard = subprocess.Popen(
        ["sh", "-c", "read _; kill -9 $0", str(weed.pid)],
        stdin=subprocess.PIPE,
        pass_fds=[keeper_lock],
    )
    try:
        yield weed
    finally:
        guard.kill()
        weed.kill()  # what it has acknowledged is on disk
        weed.wait()


def took_over(users: int) -> bool:
    """Take the file's lock for this process alone; False while a user shares it."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def keep() -> None:
    """Run the server until nobody holds a lock any more, and again if it dies before."""
    os.umask(0o077)  # the two files hold the keys
    # SLURM sends SIGTERM to all processes of a job, whose last uploads still need the server. So
    # this one ignores it, and starts the server again, which dies of it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Where the server was too busy to answer in time, a second keeper is started. It waits here.
    keeper_lock = os.open(FOLDER / "keeper", os.O_CREAT | os.O_RDWR)
    fcntl.flock(keeper_lock, fcntl.LOCK_EX)

    ports = free_ports()
    s3_url = f"http://127.0.0.1:{ports['s3.port']}"
    bucket_url = f"http://127.0.0.1:{ports['filer.port']}/buckets/{BUCKET}/"
    keys = {
        name: secrets.token_hex(20)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    }
    profile = "".join(f"{name.lower()} = {value}\n" for name, value in keys.items())
    lines = {"AWS_ENDPOINT_URL": s3_url, **keys}.items()
    users = os.open(FOLDER / "users", os.O_RDWR)
    try:
        while not took_over(users):
            with running_weed(ports, keys, keeper_lock) as weed:
                while not (answers(f"{s3_url}/healthz") and answers(bucket_url)):
                    if weed.poll() is not None:
                        sys.exit("weed has ended")
                    time.sleep(0.05)
                CREDENTIALS.write_text(f"[default]\n{profile}")
                ENV_FILE.write_text(
                    "".join(f"{name}={value}\n" for name, value in lines)
                )
                while weed.poll() is None and not took_over(users):
                    time.sleep(0.2)
    finally:
        ENV_FILE.unlink(missing_ok=True)


if __name__ == "__main__":
    keep()
