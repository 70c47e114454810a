"""A faulty line between a training and the S3 server of this machine."""

import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from src.data.s3_server import connect


# One request, which is passed on with its headers: they are signed.
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # so that Expect: 100-continue is answered

    def do_GET(self) -> None:
        self.close_connection = True
        request = f"{self.command} {self.path}"
        fault = next((f for part, f in self.server.faults if part in request), "")
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault.isdigit():
            self.send_error(int(fault))
        if fault in ("", "half"):
            upstream = HTTPConnection(self.server.upstream)
            upstream.request(self.command, self.path, content, dict(self.headers))
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response_only(answer.status)
            for name, value in {"Content-Length": len(body), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if fault else body)
        if fault:
            self.server.seen.set()
        if fault in ("half", "silence"):
            self.server.end.wait()

    def log_message(self, *_: object) -> None:
        pass

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815


class FaultyProxy(ThreadingHTTPServer):
    """``faults``: pairs of a part of a request, such as "PUT", and a status, silence or half."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = connect()["AWS_ENDPOINT_URL"].partition("//")[2]
        self.faults: list[tuple[str, str]] = []
        self.seen = threading.Event()  # a fault has happened
        self.end = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


# A line between the trainings of a test and the server.
@pytest.fixture
def proxy(monkeypatch):
    server = FaultyProxy()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", address)
    yield server
    server.end.set()
    server.shutdown()
    server.server_close()
