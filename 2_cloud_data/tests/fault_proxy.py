"""A faulty network between a reader and an S3 server on this machine."""

import socket
import struct
import threading
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Fault:
    """What happens to the next requests: a status such as 503, reset, stall, or cut (a half)."""

    kind: str
    times: float = 1  # or math.inf
    path: str = ""  # a part of it, after its method


# One request, which is passed on with its headers: they are signed.
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # so that Expect: 100-continue is answered

    def do_GET(self) -> None:
        self.close_connection = True
        kind = self.server.fault(f"{self.command} {self.path}")
        if kind == "stall":
            self.server.stopped.wait()
        elif kind == "reset":
            self.request.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        elif kind.isdigit():
            self.send_error(int(kind))
        else:
            upstream = HTTPConnection(self.server.upstream)
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            upstream.request(self.command, self.path, content, dict(self.headers))
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response_only(answer.status)
            for name, value in {"Content-Length": len(body), **answer.headers}.items():
                if name != "Transfer-Encoding":
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if kind == "cut" else body)
            upstream.close()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815


# Runs in a `with` block; its faults may change meanwhile.
class FaultyProxy(ThreadingHTTPServer):
    request_queue_size = 128  # with the default of 5, some of many wait for a second

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream, self.url = (
            endpoint.split("//")[1],
            f"http://127.0.0.1:{self.server_port}",
        )
        self.faults: list[Fault] = []  # the first that fits is taken
        self.stopped = threading.Event()

    def __enter__(self) -> "FaultyProxy":
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.shutdown()
        self.server_close()

    def fault(self, path: str) -> str:
        for fault in self.faults:
            if fault.times > 0 and fault.path in path:
                fault.times -= 1
                return fault.kind
        return ""
