"""A faulty network between a client and an S3 server on this machine."""

import contextlib
import socket
import socketserver
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

BUSY = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n%s" % (len(BUSY), BUSY)


@dataclass
class Fault:
    """What happens to the next requests: 503, reset, stall (no answer), cut (half an answer)."""

    kind: str
    times: float = 1  # or math.inf
    method: str = ""  # any
    path: str = ""  # a part of it


class Handler(socketserver.StreamRequestHandler):
    """One connection, for one request: the answer says that it is closed then."""

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (line := self.rfile.readline()):
                return
            head += line
        proxy: FaultyProxy = self.server.proxy
        method, path, _ = head.decode("latin-1").split(" ", 2)
        proxy.requests.append((method, path))
        time.sleep(proxy.delay)
        kind = proxy.take(method, path)
        if kind == "stall":
            proxy.stopped.wait()
        elif kind == "reset":
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif kind == "503":
            self.wfile.write(BUSY)
        else:
            self.forward(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), kind == "cut")

    def forward(self, head: bytes, is_cut: bool) -> None:
        """Pass the request on, and the answer back."""
        with socket.create_connection(self.server.proxy.address) as upstream:
            upstream.sendall(head)
            body = threading.Thread(target=self.pump, args=(self.rfile.read1, upstream.sendall))
            body.daemon = True
            body.start()
            if not is_cut:
                self.pump(upstream.recv, self.request.sendall)
                return
            answer = b"".join(iter(lambda: upstream.recv(65536), b""))
            self.request.sendall(answer[: len(answer) // 2])

    def pump(self, receive, send) -> None:
        with contextlib.suppress(OSError, ValueError):
            while piece := receive(65536):
                send(piece)


@dataclass
class FaultyProxy:
    """Runs in a ``with`` block; its attributes may change meanwhile."""

    endpoint: str
    delay: float = 0.0  # seconds before each request is passed on
    faults: list[Fault] = field(default_factory=list)  # the first that fits is taken
    requests: list[tuple[str, str]] = field(default_factory=list)  # methods and paths

    def __enter__(self) -> Self:
        parts = urlsplit(self.endpoint)
        self.address, self.stopped = (parts.hostname, parts.port), threading.Event()
        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.proxy, self.server.daemon_threads = self, True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    def take(self, method: str, path: str) -> str:
        """The kind of the fault for this request, or nothing."""
        for fault in self.faults:
            if fault.times > 0 and fault.method in ("", method) and fault.path in path:
                fault.times -= 1
                return fault.kind
        return ""
