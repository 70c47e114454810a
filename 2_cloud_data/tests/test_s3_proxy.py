"""The slow and faulty network: valid signatures, delays, faults, and nothing left behind."""

import base64
import contextlib
import http.client
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
import s3fs
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from src.data.s3_proxy import Fault, FaultyProxy
from src.data.s3_server import connect, disconnect

DATA = os.urandom(100_001)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[dict[str, str]]:
    """Address and credentials of an S3 server that holds DATA as embedded/data."""
    folder = tmp_path_factory.mktemp("s3")
    variables = connect(folder)
    files(variables).pipe_file("embedded/data", DATA)
    yield variables
    disconnect(folder)


@pytest.fixture
def proxy(server, caplog) -> Iterator[FaultyProxy]:
    """A proxy that complains of nothing, and of which nothing is left when it has ended."""
    with FaultyProxy(server["AWS_ENDPOINT_URL"]) as proxy:
        yield proxy
    assert not [record for record in caplog.get_records("call") if record.name == "asyncio"]
    assert is_closed(proxy.url)
    assert "s3-proxy" not in {thread.name for thread in threading.enumerate()}


def is_closed(url: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", urlsplit(url).port)) != 0


def files(server, url: str | None = None, secret: str | None = None) -> s3fs.S3FileSystem:
    """The server's files, as seen through ``url``."""
    key, right = server["AWS_ACCESS_KEY_ID"], server["AWS_SECRET_ACCESS_KEY"]
    options = {"endpoint_url": url or server["AWS_ENDPOINT_URL"], "skip_instance_cache": True}
    return s3fs.S3FileSystem(key=key, secret=secret or right, **options)


def dial(proxy: FaultyProxy) -> contextlib.closing[http.client.HTTPConnection]:
    """A client that tries nothing twice."""
    return contextlib.closing(http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=60))


def sign(server, line, method: str, path: str, **headers: str) -> dict[str, str]:
    """The headers of a signed request. If there is a trailer, the body is not signed."""
    request = AWSRequest(method, f"http://{line.host}:{line.port}{path}", headers=headers)
    if "x-amz-trailer" in headers:
        request.context["checksum"] = {"request_algorithm": {"in": "trailer"}}
    key = Credentials(server["AWS_ACCESS_KEY_ID"], server["AWS_SECRET_ACCESS_KEY"])
    S3SigV4Auth(key, "s3", "us-east-1").add_auth(request)
    return dict(request.headers)


def ask(server, line, method: str = "GET", path: str = "/embedded/data") -> tuple[int, bytes]:
    """Status and body of an answer."""
    line.request(method, path, headers=sign(server, line, method, path))
    answer = line.getresponse()
    return answer.status, answer.read()


def test_s3_works_through_it(server, proxy):
    near, far, path = files(server), files(server, proxy.url), "embedded/round/trip ü"
    far.pipe_file(path, DATA)
    assert near.cat_file(path) == far.cat_file(path) == DATA
    assert far.cat_file(path, start=10, end=20) == DATA[10:20]
    assert far.info(path)["size"] == len(DATA)
    assert far.find("embedded/round") == [path]
    far.rm(path)
    assert not near.exists(path)
    assert proxy.counts.keys() == {"PUT", "GET", "HEAD", "POST"}
    assert proxy.requests_of("GET", "list-type")[0].headers["host"] in proxy.url
    assert proxy.num_bytes > 2 * len(DATA)


def test_multipart_upload(server, proxy):
    data = os.urandom(12 * 2**20 + 1)
    with files(server, proxy.url).open("embedded/large", "wb", block_size=5 * 2**20) as file:
        for start in range(0, len(data), 2**20):
            file.write(data[start : start + 2**20])
    assert len(proxy.requests_of("PUT", "partNumber=")) > 1
    assert files(server, proxy.url).cat_file("embedded/large") == data


def test_upload_in_chunks(server, proxy):
    """aws-chunked with a checksum at the end, as newer clients send it, in chunks of HTTP."""
    checksum = base64.b64encode(zlib.crc32(DATA).to_bytes(4, "big"))
    body = b"%x\r\n%s\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n" % (len(DATA), DATA, checksum)
    headers = {"content-encoding": "aws-chunked", "x-amz-trailer": "x-amz-checksum-crc32"}
    headers["x-amz-decoded-content-length"] = str(len(DATA))
    with dial(proxy) as line:
        headers = sign(server, line, "PUT", "/embedded/chunked", **headers)
        headers["Transfer-Encoding"] = "chunked"
        pieces = [body[:7], body[7:70_000], body[70_000:]]
        line.request("PUT", "/embedded/chunked", iter(pieces), headers, encode_chunked=True)
        answer = line.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        assert ask(server, line, path="/embedded/chunked") == (200, DATA)  # the end was found


@pytest.mark.parametrize("size", [1, 12 * 2**20])
def test_wrong_secret_is_refused(server, proxy, size):
    with pytest.raises(PermissionError, match="signature"):
        files(server, proxy.url, secret="wrong").pipe_file("embedded/never", bytes(size))
    assert not files(server).exists("embedded/never")


def test_each_request_on_a_connection_is_delayed(server, proxy):
    proxy.delay = 0.1
    with dial(proxy) as line:
        line.connect()
        first, start = line.sock, time.perf_counter()
        answers = [ask(server, line, method) for method in ("GET", "HEAD", "GET")]
        assert time.perf_counter() - start >= 0.3
        assert line.sock is first
    assert answers == [(200, DATA), (200, b""), (200, DATA)]


def test_delays_in_flight_overlap(server, proxy):
    def get(_) -> tuple[int, bytes]:
        with dial(proxy) as line:
            return ask(server, line)

    def seconds(num_threads: int) -> float:
        start = time.perf_counter()
        with ThreadPoolExecutor(num_threads) as pool:
            assert set(pool.map(get, range(12))) == {(200, DATA)}
        return time.perf_counter() - start

    proxy.delay = 0.15
    alone, together = seconds(1), seconds(12)
    assert alone >= 12 * 0.15
    assert 0.15 <= together < alone / 3


def test_connections_share_the_bandwidth(server, proxy):
    proxy.bandwidth = 4 * len(DATA)  # per second
    start = time.perf_counter()
    with dial(proxy) as line, dial(proxy) as other, ThreadPoolExecutor(2) as pool:
        answers = pool.map(lambda client: ask(server, client), [line, other])
        assert list(answers) == [(200, DATA), (200, DATA)]
    assert time.perf_counter() - start >= 0.45


@pytest.mark.slow(copies=True)
def test_503_to_an_upload(server, proxy):
    """To a client that just sends the body, and to s3fs, which first asks and then tries again."""
    proxy.faults = [Fault("503", method="PUT", times=2)]
    with dial(proxy) as line:
        line.request("PUT", "/embedded/again", DATA)
        answer = line.getresponse()
        assert (answer.status, b"<Code>SlowDown</Code>" in answer.read()) == (503, True)
    assert not files(server).exists("embedded/again")
    files(server, proxy.url).pipe_file("embedded/again", DATA)
    assert files(server).cat_file("embedded/again") == DATA
    assert proxy.counts["PUT"] == 3


def test_reset(server, proxy):
    proxy.faults = [Fault("reset")]
    with dial(proxy) as line, pytest.raises(ConnectionResetError) as error:
        ask(server, line)
    assert error.type is ConnectionResetError  # where a connection just ends, it is a subclass


def test_cut(server, proxy):
    proxy.faults = [Fault("cut", method="GET")]
    with dial(proxy) as line:
        with pytest.raises(http.client.IncompleteRead) as error:
            ask(server, line)
        assert error.value.partial == DATA[: len(DATA) // 2]
        assert error.value.expected == len(DATA) - len(DATA) // 2
        line.close()
        assert ask(server, line) == (200, DATA)


def test_stall_ends_with_the_proxy(server):
    with FaultyProxy(server["AWS_ENDPOINT_URL"], faults=[Fault("stall")]) as proxy:
        line = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=0.1)
        line.request("GET", "/embedded/data")
        proxy.wait_for("GET", "/data")
        with dial(proxy) as other:  # nobody else is held up
            assert ask(server, other) == (200, DATA)
        with pytest.raises(TimeoutError):
            line.sock.recv(1)
    line.sock.settimeout(60)
    with contextlib.closing(line):
        assert line.sock.recv(1) == b""
    assert is_closed(proxy.url)


def test_faults_choose_their_requests(server, proxy):
    """By method and path; the first that matches is taken, and one without a number stays."""
    for_ever = Fault("503", path_contains="/other", times=None)
    proxy.faults = [Fault("503", method="HEAD"), for_ever, Fault("stall", method="GET", times=0)]
    with dial(proxy) as line:
        assert [ask(server, line, "HEAD")[0] for _ in range(2)] == [503, 200]
        assert [ask(server, line, path="/embedded/other/x")[0] for _ in range(3)] == [503] * 3
        assert ask(server, line) == (200, DATA)
        assert [fault.taken for fault in proxy.faults] == [1, 3, 0]
        proxy.faults.remove(for_ever)
        assert ask(server, line, path="/embedded/other/x")[0] == 404
    assert len(proxy.requests_of("GET", "/other")) == 4
    assert len(proxy.requests_of()) == 7


@pytest.mark.parametrize("kind", ["rest", "cut"])
def test_impossible_fault(kind):
    with pytest.raises(ValueError, match=f"kind='{kind}'.* is none of 503, .*; cut needs"):
        Fault(kind, method="PUT")


def test_no_server_is_502():
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with FaultyProxy(f"http://127.0.0.1:{port}") as proxy, dial(proxy) as line:
        line.request("PUT", "/embedded/data", DATA)
        assert line.getresponse().status == 502
