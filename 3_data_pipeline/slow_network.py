"""Put a distance between this machine and the embedded S3 server: each request arrives later.

uv run python slow_network.py 0.03 uv run python lightning_train.py     30 ms, as to a bucket
"""

# Requests that wait at the same time do not wait for each other: many of them hide the distance.

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from src.data.s3_server import connect
from src.run.errors import one_line_errors


@contextmanager
def slow_network(delay: float) -> Iterator[None]:
    """In this block, new readers of the embedded server are ``delay`` seconds away from it.

    With 0, nothing is started.
    """
    if not delay:
        yield
        return
    address = connect()["AWS_ENDPOINT_URL"].removeprefix("http://").split(":")
    # A process of its own: it must not share a processor's time with a reader's threads.
    spawn = multiprocessing.get_context("spawn")
    parent_end, child_end = spawn.Pipe()
    process = spawn.Process(
        target=run_proxy, args=(address, delay, child_end), daemon=True
    )
    process.start()
    child_end.close()  # so that nobody waits for a process that has failed
    os.environ["EMBEDDED_S3_ENDPOINT"] = parent_end.recv()
    try:
        yield
    finally:
        del os.environ["EMBEDDED_S3_ENDPOINT"]
        process.kill()
        process.join()


def run_proxy(address: list[str], delay: float, parent: Connection) -> None:
    """Serve, until the process is killed: at Ctrl-C a training may need one more batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(serve(address, delay, parent))


async def serve(address: list[str], delay: float, parent: Connection) -> None:
    """Pass on what clients send, late, and the answers at once."""

    async def handle(
        client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        server, to_server = await asyncio.open_connection(*address)
        await asyncio.gather(pump(client, to_server, delay), pump(server, to_client, 0))

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024)
    parent.send(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    await listening.serve_forever()


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float
) -> None:
    """Pass on what comes, each read ``delay`` seconds later; a request to read is one."""
    with suppress(ConnectionError):  # a client that goes away
        while data := await reader.read(1 << 20):
            await asyncio.sleep(delay)
            writer.write(data)
    writer.close()


if __name__ == "__main__":
    with one_line_errors(), slow_network(float(sys.argv[1])):
        # After one_line_errors, which has a handler of its own. The command gets Ctrl-C, too, and
        # decides. Not SIG_IGN, which it would inherit.
        signal.signal(signal.SIGINT, lambda *_: None)
        sys.exit(subprocess.call(sys.argv[2:]))
