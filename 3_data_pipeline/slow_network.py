"""Put a slow network in front of an S3 server, to see on one machine what distance does.

  uv run python slow_network.py --delay 30ms                       a server in another region
  uv run python slow_network.py --delay 5ms --bandwidth 100MB/s    a near one, and a narrow line
  uv run python slow_network.py --delay 30ms --endpoint http://127.0.0.1:9000

Each request waits before it goes on, as it would on its way. Requests that wait at the same time
do not wait for each other: this is why many of them in flight hide the delay. The bandwidth is
that of one line for all connections. Without --endpoint the server is this chapter's own.
"""

import argparse
import math
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from src.data.s3_proxy import FaultyProxy
from src.data.s3_server import FOLDER, ServerError, connect
from src.errors import UserError, one_line_errors

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES_PER_SECOND = {"kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
STOP = {signal.SIGINT, signal.SIGTERM}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others here."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def read_arguments() -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", default="0ms", help="before each request, in us, ms or s")
    parser.add_argument("--bandwidth", help="in kB/s, MB/s or GB/s; without it there is no limit")
    parser.add_argument("--endpoint", help="another S3 server, as http://host:port")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the own server runs")
    return parser.parse_args()


def quantity(option: str, text: str, units: dict[str, float]) -> float:
    """The value of a number with a unit, such as 30ms, in seconds or bytes per second."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\S+)", text)
    if not parts or parts[2] not in units:
        raise UserError(f"{option}: {text!r} is not a number with a unit, {' or '.join(units)}")
    return float(parts[1]) * units[parts[2]]


def own_server(folder: Path) -> str:
    """The address of this chapter's server, which starts unless it runs."""
    try:
        return connect(folder)["AWS_ENDPOINT_URL"]
    except ServerError as error:
        raise UserError(str(error)) from error


def proxy_to(endpoint: str, delay: float, bandwidth: float) -> FaultyProxy:
    """A proxy that has not started yet, to a server that runs."""
    try:
        proxy = FaultyProxy(endpoint, delay, bandwidth)
    except ValueError as error:
        raise UserError(f"--endpoint: {error}") from error
    try:
        socket.create_connection(proxy.address, timeout=5).close()
    except OSError as error:
        raise UserError(f"--endpoint: nothing answers at {endpoint}: {error}") from error
    return proxy


def main() -> int:
    """Start the proxy, say how to use it, wait, say what came through. Returns the exit code."""
    arguments = read_arguments()
    folder = arguments.folder.resolve()
    delay = quantity("--delay", arguments.delay, SECONDS)
    bandwidth = math.inf
    if arguments.bandwidth is not None:
        bandwidth = quantity("--bandwidth", arguments.bandwidth, BYTES_PER_SECOND)
    if not bandwidth:
        raise UserError("--bandwidth: nothing passes a line without any")
    endpoint = arguments.endpoint or own_server(folder)
    proxy = proxy_to(endpoint, delay, bandwidth)
    # From here on these signals wait for sigwait. The thread of the proxy inherits that.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    with proxy:
        print(f"slow network  {proxy.url} in front of {endpoint}")
        print(f"delay         {arguments.delay} for each request")
        print(f"bandwidth     {arguments.bandwidth or 'without a limit'}")
        print("to use it in another terminal:")
        if not arguments.endpoint:
            print(f"  set -a; . {os.path.relpath(folder / 'server.env')}; set +a")
            print(f"  export EMBEDDED_S3_ENDPOINT={proxy.url}  # for s3://embedded/...")
        print(f"  export AWS_ENDPOINT_URL={proxy.url}  # for all other programs")
        print("Ctrl-C stops it", flush=True)
        signal.sigwait(STOP)
    methods = ", ".join(f"{count} {method}" for method, count in proxy.counts.most_common())
    print(f"passed on     {proxy.counts.total()} requests ({methods or 'none'}),", end=" ")
    print(f"{proxy.num_bytes / 1e6:.1f} MB up and down")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
