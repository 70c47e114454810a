"""An S3 server on this machine: the first process that needs it starts it, the last one ends it.

uv run python -m src.data.s3_server                run it until Ctrl-C, for other programs
uv run python -m src.data.s3_server -- COMMAND     run a command that finds it in AWS_* variables
"""

# SeaweedFS, one binary, listens on 127.0.0.1 alone. Each user of the server holds a shared lock on
# the file `users`, which the operating system takes back however the process ends, also after
# SIGKILL. A keeper, this file as a program, waits for the exclusive lock: it gets it when the last
# user has gone, and stops the server.

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
from contextlib import ExitStack
from pathlib import Path

from dotenv import dotenv_values
from filelock import FileLock

BUCKET = "embedded"
FOLDER = Path(__file__).resolve().parents[2] / "output" / "s3"
FOLDER = Path(os.environ.get("S3_FOLDER") or FOLDER)
PARTS = ("s3", "filer", "master", "volume", "admin")
PORTS = [f"{part}.port{kind}" for part in PARTS for kind in ("", ".grpc")]
OPTIONS = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}", "-master.telemetry=false"]
OPTIONS += ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
VARIABLES = FOLDER / "server.env"
_lock: list[int] = []  # the file that this process holds the lock on


def connect() -> dict[str, str]:
    """Start the server unless it runs, and keep it until this process ends.

    Returns AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, as S3 clients read them.
    Raises OSError if it does not start.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / "lock"):  # of ranks that come at the same time, one starts it
        if not _lock:
            _lock.append(os.open(FOLDER / "users", os.O_CREAT | os.O_RDWR))
            fcntl.flock(_lock[0], fcntl.LOCK_SH)  # waits while the last one is stopped
        keeper = None
        while not answers(f"{dotenv_values(VARIABLES).get('AWS_ENDPOINT_URL')}/healthz"):
            if keeper and keeper.poll() is not None:
                raise OSError(f"the S3 server does not start; see {FOLDER / 'server.log'}")
            if keeper is None:
                with (FOLDER / "server.log").open("wb") as log:
                    # A new session, because Ctrl-C, which saves a checkpoint, must not reach it.
                    command = [sys.executable, __file__, "keep"]
                    keeper = subprocess.Popen(command, stderr=log, start_new_session=True)
            time.sleep(0.05)
    return {name: value for name, value in dotenv_values(VARIABLES).items() if value}


def answers(url: str) -> bool:
    """Whether there is something at this address."""
    try:
        return bool(urllib.request.urlopen(url, timeout=5).status == 200)
    except (OSError, ValueError):
        return False


def keep() -> None:
    """Run the server until nobody holds a lock any more."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        ports = dict(zip(PORTS, (s.getsockname()[1] for s in sockets), strict=True))
    url, bucket = (f"http://127.0.0.1:{ports[name]}" for name in ("s3.port", "filer.port"))
    keys = {name: secrets.token_hex(20) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    (FOLDER / "data").mkdir(exist_ok=True)
    weed_file = f"{sysconfig.get_path('scripts')}/weed"
    command = [weed_file, "-logtostderr=true", "mini", *OPTIONS, f"-dir={FOLDER / 'data'}"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    environment = {"HOME": str(FOLDER), "GOMEMLIMIT": "512MiB", **keys}
    weed = subprocess.Popen(command, stdout=sys.stderr, env=environment)
    try:
        while not (answers(f"{url}/healthz") and answers(f"{bucket}/buckets/{BUCKET}/")):
            if weed.poll() is not None:
                sys.exit("weed has ended")
            time.sleep(0.05)
        VARIABLES.touch(0o600)  # it holds the keys
        lines = {"AWS_ENDPOINT_URL": url, **keys}.items()
        VARIABLES.write_text("".join(f"{name}={value}\n" for name, value in lines))
        fcntl.flock(os.open(FOLDER / "users", os.O_RDWR), fcntl.LOCK_EX)  # waits for the last user
    finally:
        VARIABLES.unlink(missing_ok=True)
        weed.kill()  # what it has acknowledged is on disk
        weed.wait()


def main(arguments: list[str]) -> int:
    """Run in the foreground, or become a command that has the server. Returns the exit code."""
    server = connect()
    if arguments[:1] == ["--"]:
        # It takes this process over, lock included: a signal, such as Ctrl-C, is its own affair.
        os.set_inheritable(_lock[0], True)
        os.execvpe(arguments[1], arguments[1:], os.environ | server)
    print(f"S3 server {server['AWS_ENDPOINT_URL']}, bucket {BUCKET}; Ctrl-C ends it. Elsewhere:")
    print(f"  set -a; . {VARIABLES}; set +a", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["keep"]:
        keep()
    else:
        sys.exit(main(sys.argv[1:]))
