"""Put a distance between this machine and the embedded S3 server: each request arrives later.

uv run python slow_network.py 0.03 uv run python lightning_train.py     30 ms, as to a bucket

Requests that wait at the same time do not wait for each other: many of them hide the distance.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from src.data.store import OCEAN, embedded_server
from src.run.errors import one_line_errors


@contextmanager
def slow_network(delay: float) -> Iterator[None]:
    """In this block, new readers of the embedded server are ``delay`` seconds away from it.

    With 0, nothing is started.
    """
    if not delay:
        yield
        return
    address = embedded_server(OCEAN)["AWS_ENDPOINT_URL"].removeprefix("http://")
    # A process of its own: it must not share a processor's time with a reader's threads. In a
    # session of its own: at Ctrl-C a training may need one more batch.
    proxy = subprocess.Popen(
        [sys.executable, __file__, "--serve", address, str(delay)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert proxy.stdout
    os.environ["EMBEDDED_S3_ENDPOINT"] = proxy.stdout.readline().strip()
    try:
        yield
    finally:
        del os.environ["EMBEDDED_S3_ENDPOINT"]
        proxy.communicate()  # closes the pipe, and waits


async def serve(address: str, delay: float) -> None:
    """Pass on what clients send, late, and the answers at once, while the starter lives."""
    host, port = address.split(":")
    # Its end closes the pipe, whatever ends it.
    asyncio.get_running_loop().add_reader(sys.stdin, os._exit, 0)

    async def handle(
        client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        server, to_server = await asyncio.open_connection(host, port)
        await asyncio.gather(pump(client, to_server, delay), pump(server, to_client, 0))

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024)
    own_port = listening.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{own_port}", flush=True)
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
    if sys.argv[1] == "--serve":
        asyncio.run(serve(sys.argv[2], float(sys.argv[3])))
    with one_line_errors(), slow_network(float(sys.argv[1])):
        command = subprocess.Popen(sys.argv[2:])
        # After one_line_errors, which has handlers of its own. The command decides what a signal
        # means, and needs the network until its end. A terminal sends it Ctrl-C, too.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: command.terminate())
        sys.exit(command.wait())
