"""A network that fails, between a reader and an S3 server on this machine."""

import math
import socket
import struct
import threading
import time
from collections import Counter
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """A request, which is passed on with its headers, because they are signed."""

    protocol_version = "HTTP/1.1"  # so that Expect: 100-continue is answered

    def do_GET(self) -> None:
        self.close_connection = True
        proxy = self.server
        proxy.asked[self.path] += 1
        proxy.headers.append(str(self.headers))
        if "/c/" in self.path and proxy.asked[self.path] <= proxy.times:
            if proxy.fault == "silence":
                time.sleep(1e6)
            elif proxy.fault == "refused":
                hard = struct.pack("ii", 1, 0)  # closed at once, and not in good order
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, hard)
            else:
                self.send_error(proxy.fault)
            return
        upstream = HTTPConnection(proxy.upstream)
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream.request(self.command, self.path, content, dict(self.headers))
        answer = upstream.getresponse()
        body = answer.read()
        is_hidden = proxy.hides_absent and answer.status == 404
        self.send_response_only(403 if is_hidden else answer.status)
        for name, value in {"Content-Length": len(body), **answer.headers}.items():
            if name != "Transfer-Encoding":
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """No line for each fault."""


class FaultyProxy(ThreadingHTTPServer):
    """Each chunk's first ``times`` requests meet a fault: a status, refused or silence."""

    request_queue_size = 128  # with the default of 5, some of many wait for a second
    fault: int | str = 503
    times = 0.0
    hides_absent = False  # as AWS does from those who may not list

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self.headers: list[str] = []
        self.upstream = endpoint.removeprefix("http://")
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def fail(self, fault: int | str, times: float = math.inf) -> None:
        """From now on."""
        self.asked.clear()
        self.fault = fault
        self.times = times
