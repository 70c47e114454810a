"""A slow and faulty network in front of an S3 server, for tests and measurements.

  with FaultyProxy(endpoint, delay=0.03, faults=[Fault("503", method="PUT", times=2)]) as proxy:
      ...  # a client whose endpoint is proxy.url

The proxy passes each head on byte for byte. S3 signatures cover the Host header: the client signs
for the address of the proxy, and the server checks the signature with the header that arrives.
Clients send many requests through one connection, and each of them is delayed. So the proxy has to
find where a request ends: https://www.rfc-editor.org/rfc/rfc9112#name-message-body-length
"""

import asyncio
import contextlib
import math
import re
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

KINDS = ("503", "reset", "stall", "cut")
PIECE = 128 * 1024  # bytes that are passed on together
BURST = 0.01  # seconds; asyncio wakes up a little late, and the next pieces make up for it


@dataclass(frozen=True)
class Request:
    """A request as it arrives."""

    method: str
    path: str  # with the query
    headers: dict[str, str] = field(repr=False)  # by name in lower case
    head: bytes = field(repr=False)

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> Self:
        """The next one, without its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        pairs = (line.partition(":") for line in lines if line)
        return cls(method, path, {name.lower(): value.strip() for name, _, value in pairs}, head)

    async def body(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """What follows the head, piece by piece; chunks keep their framing."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            size, line = 1, b""
            while size or line != b"\r\n":  # the last chunk, of size 0, trailers, an empty line
                line = await reader.readuntil(b"\r\n")
                size = size and int(line.partition(b";")[0], 16)
                yield line + await reader.readexactly(size + 2 if size else 0)
            return
        left = int(self.headers.get("content-length", 0))
        while left:
            piece = await reader.readexactly(min(left, PIECE))
            left -= len(piece)
            yield piece

    def matches(self, method: str, contains: str) -> bool:
        return method in ("", self.method) and contains in self.path


@dataclass
class Fault:
    """What happens to the next requests that match.

    503    answers SlowDown, as S3 does when it is asked too often
    reset  resets the connection (RST)
    stall  never answers
    cut    sends the head and half of the body of the answer to a GET, then closes
    """

    kind: str
    method: str = ""  # any
    path_contains: str = ""
    times: int | None = 1  # None: for ever
    taken: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.kind == "cut" and self.method != "GET"):
            raise ValueError(f"{self} is none of {', '.join(KINDS)}; cut needs method='GET'")

    def take(self, request: Request) -> bool:
        """Whether it happens to this request, which is then one of its times."""
        hit = self.taken != self.times and request.matches(self.method, self.path_contains)
        self.taken += hit
        return hit


@dataclass(eq=False)
class FaultyProxy:
    """A proxy on a thread of its own, for as long as a ``with`` block lasts; its settings may
    change meanwhile. Raises ValueError for an endpoint that is not http://host:port.
    """

    endpoint: str  # where it passes requests on to
    delay: float = 0.0  # seconds before each request is passed on
    bandwidth: float = math.inf  # bytes per second, up and down, all connections together
    faults: list[Fault] = field(default_factory=list)  # the first that matches is taken
    # What it has seen: the last requests, how many of each method, bytes up and down together.
    requests: deque[Request] = field(default_factory=lambda: deque(maxlen=10_000), init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    num_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{self.endpoint!r} is not of the form http://host:port")
        self.address = (parts.hostname, parts.port or 80)
        self._free_at = 0.0  # when the line has sent all that waits, as time.monotonic() counts
        self._arrived = threading.Condition()
        self._tasks: set[asyncio.Task] = set()

    def __enter__(self) -> Self:
        self._door = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._door.setblocking(False)
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="s3-proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def requests_of(self, method: str = "", contains: str = "") -> list[Request]:
        """The requests so far in order of arrival, also those that met a fault."""
        return [r for r in list(self.requests) if r.matches(method, contains)]

    def wait_for(self, method: str = "", contains: str = "", timeout: float = 30) -> None:
        """Return when such a request has arrived. Raises TimeoutError (seconds)."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: self.requests_of(method, contains), timeout):
                raise TimeoutError(f"no {method} request for *{contains}* in {timeout} s")

    def note(self, request: Request) -> str:
        """Count a request; the kind of the fault that happens to it, or nothing."""
        with self._arrived:
            self.requests.append(request)
            self.counts[request.method] += 1
            self._arrived.notify_all()
            return next((fault.kind for fault in self.faults if fault.take(request)), "")

    async def send(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        """Send some bytes to one of the sides, after those that wait for the same line."""
        self.num_bytes += len(piece)
        if self.bandwidth < math.inf:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - BURST) + len(piece) / self.bandwidth
            await asyncio.sleep(self._free_at - now)
        writer.write(piece)
        await writer.drain()

    def spawn(self, coroutine: Coroutine) -> asyncio.Task:
        """Start a task and keep it until it ends, which asyncio itself does not."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _run(self) -> None:
        # When the runner leaves its block, it cancels the tasks of all connections.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, self._door:
            self._loop.add_reader(self._door, self._accept)
            runner.run(self._stop.wait())
            self._loop.remove_reader(self._door)

    def _accept(self) -> None:
        client, _ = self._door.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else up to 40 ms more
        # A task that is cancelled before its first step closes nothing itself.
        self.spawn(Connection(self, client).run()).add_done_callback(lambda _: client.close())


@dataclass(eq=False)
class Connection:
    """A connection of a client, and the one to the server that belongs to it."""

    proxy: FaultyProxy
    client: socket.socket
    server: asyncio.StreamWriter | None = None
    cut: bool = False  # the next answer

    async def run(self) -> None:
        """Handle one request after the other until somebody closes the connection."""
        self.reader, self.writer = await asyncio.open_connection(sock=self.client)
        try:
            while True:
                await self.handle(await Request.read(self.reader))
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # it has closed, or does not speak HTTP
        finally:
            for writer in filter(None, (self.writer, self.server)):
                writer.transport.abort()

    async def handle(self, request: Request) -> None:
        """Pass a request on, or do as its fault says."""
        fault = self.proxy.note(request)
        await asyncio.sleep(self.proxy.delay)
        if fault == "503":
            await self.refuse(request, "503 Slow Down", "SlowDown")
        elif fault == "reset":
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.close()  # which now sends RST
        elif fault == "stall":
            await self.reader.read()  # until the client gives up
        else:
            self.cut = fault == "cut"
            await self.forward(request)

    async def forward(self, request: Request) -> None:
        if not self.server:
            try:
                answers, self.server = await asyncio.open_connection(*self.proxy.address)
            except OSError:
                return await self.refuse(request, "502 Bad Gateway", "BadGateway")
            self.proxy.spawn(self.pass_back(answers))
        await self.proxy.send(request.head, self.server)
        async for piece in request.body(self.reader):
            await self.proxy.send(piece, self.server)

    async def pass_back(self, answers: asyncio.StreamReader) -> None:
        """Pass on what the server says, unread: it answers in the order of the requests."""
        with contextlib.suppress(OSError, EOFError):
            while (piece := await answers.read(PIECE)) and not self.cut:
                await self.proxy.send(piece, self.writer)
            if self.cut:
                head, end, body = piece.partition(b"\r\n\r\n")
                length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
                half = (int(length[1]) if length else len(body)) // 2
                body += await answers.readexactly(max(0, half - len(body)))
                await self.proxy.send(head + end + body[:half], self.writer)
        self.writer.close()

    async def refuse(self, request: Request, status: str, code: str) -> None:
        """Answer with an error of S3 after the body has come, and close the connection."""
        if "expect" in request.headers:
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async for _ in request.body(self.reader):
            pass
        body = "" if request.method == "HEAD" else f"<Error><Code>{code}</Code></Error>"
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}"
        await self.proxy.send(f"{head}\r\n\r\n{body}".encode(), self.writer)
        self.writer.close()
