"""An S3 server on this machine: the first process that needs it starts it, the last one ends it.

SeaweedFS, one binary, listens on 127.0.0.1 alone. Each user of the server holds a shared lock on
the file `users`, which the operating system takes back however the process ends, also after
SIGKILL. This file as a program is the keeper: it asks for the exclusive lock, gets it when the last
user has gone, and stops the server. Only the S3 port asks for keys: keep nothing secret here on a
machine that you share.
"""

import fcntl
import functools
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

BUCKET = "embedded"
# Of this machine alone: nodes of a cluster may share the folder of the chapter.
OUTPUT = Path(__file__).resolve().parents[2] / "output" / "s3" / socket.gethostname()
FOLDER = Path(os.environ.get("S3_FOLDER") or OUTPUT)
SERVER_FILE = FOLDER / "server.json"
SERVICES = ("s3", "filer", "master", "volume", "admin")
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


@functools.cache
def connect() -> dict[str, str]:
    """Start the server unless it runs, and keep it until this process ends.

    Returns:
        Its address and keys, by the environment variables from which S3 clients read them.

    Raises:
        OSError: it does not answer in START_SECONDS.
    """
    # A cluster's proxy does not know this machine's 127.0.0.1. All clients read this variable.
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    if "127.0.0.1" not in others:
        os.environ["no_proxy"] = f"127.0.0.1,{others}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Of ranks that come at the same time, one starts it.
    with FileLock(FOLDER / "lock"):
        # Waits while the last server is stopped. Held until this process ends.
        fcntl.flock(open_file("users"), fcntl.LOCK_SH)
        return running_server() or start_server()


def open_file(name: str) -> int:
    """A file to lock, which stays open until this process ends."""
    return os.open(FOLDER / name, os.O_CREAT | os.O_RDWR)


def running_server() -> dict[str, str]:
    """Address and keys of a server that answers; empty if there is none."""
    try:
        server = json.loads(SERVER_FILE.read_text())
        urllib.request.urlopen(f"{server['AWS_ENDPOINT_URL']}/healthz", timeout=5)
    except (OSError, ValueError):  # ValueError: the file is being written
        return {}
    return server


def start_server() -> dict[str, str]:
    """Start the keeper of a server, and wait for the server. Raises as connect does."""
    print("S3        a server starts on this machine", file=sys.stderr)
    with (FOLDER / "server.log").open("wb") as log:
        # A new session, because Ctrl-C, which saves a checkpoint, must not reach it.
        keeper = subprocess.Popen(
            [sys.executable, __file__],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while keeper.poll() is None and time.monotonic() < deadline:
        if server := running_server():
            return server
        time.sleep(0.05)
    raise OSError(f"the S3 server does not start; see {FOLDER / 'server.log'}")


def free_ports() -> dict[str, int]:
    """A port that nobody listens on, for each service; it takes the one 10,000 above, too."""
    while True:
        # Linux gives those from 32768 on to any process that asks, perhaps before the server. And a
        # span of 10,000, so that none is the one 10,000 above another.
        numbers = random.sample(range(12_768, 22_768), len(SERVICES))
        if not any(is_taken(n) or is_taken(n + 10_000) for n in numbers):
            return dict(zip(SERVICES, numbers, strict=True))


def is_taken(port: int) -> bool:
    """Whether somebody listens on this port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def keep() -> None:
    """Run the server until it has no user, and again, at the same address, if it dies before."""
    os.umask(0o077)  # two files hold the keys
    # SLURM sends SIGTERM to all processes of a job, whose last uploads still need the server. So
    # this one ignores it, and starts the server again, which dies of it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A server that is too busy to answer in time gets a second keeper, which waits here.
    fcntl.flock(open_file("keeper"), fcntl.LOCK_EX)

    ports = free_ports()
    key = secrets.token_hex(20)
    secret = secrets.token_hex(20)
    # The same as a profile of AWS, for TensorStore.
    credentials = FOLDER / "credentials"
    profile = f"aws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    credentials.write_text(f"[default]\n{profile}")
    server = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3']}",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
    }
    weed = f"{sysconfig.get_path('scripts')}/weed"
    command = [weed, "-logtostderr=true", "mini", *OPTIONS, f"-dir={FOLDER / 'data'}"]
    command += [f"-{service}.port={port}" for service, port in ports.items()]
    # It writes into HOME, and takes no setting or proxy of this user. Go frees memory earlier.
    environment = {"HOME": str(FOLDER), "GOMEMLIMIT": "512MiB", **server}
    bucket_url = f"http://127.0.0.1:{ports['filer']}/buckets/{BUCKET}/"
    (FOLDER / "data").mkdir(exist_ok=True)
    SERVER_FILE.unlink(missing_ok=True)  # of a keeper that was killed

    users = open_file("users")
    while has_users(users):
        process = subprocess.Popen(command, env=environment)
        while process.poll() is None and has_users(users):
            if not SERVER_FILE.exists():
                with suppress(OSError):  # it takes a moment to make the bucket
                    urllib.request.urlopen(bucket_url, timeout=5)
                    SERVER_FILE.write_text(json.dumps(server))
            time.sleep(0.1)
        process.kill()  # what it has acknowledged is on disk
        process.wait()
    SERVER_FILE.unlink(missing_ok=True)


def has_users(lock: int) -> bool:
    """Whether a process shares the lock; if none does, this one takes it for itself."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


if __name__ == "__main__":
    keep()
