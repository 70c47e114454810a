"""Helpers of the tests that need a server like any other, and a bad way to it."""

from collections.abc import Iterator

import pytest
import s3fs
from src.data import cloud_store
from src.data.cloud_errors import CloudError
from src.data.s3_proxy import FaultyProxy
from src.data.s3_server import connect, disconnect
from src.errors import UserError

from tests.cloud_stores import small_store
from tests.cloud_stores import url as url  # a fixture

FEW = (6, 5, 10)  # chunks; each takes a request to write


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[dict[str, str]]:
    """An S3 server like any other, that the environment names; ``bucket/small.zarr`` is there."""
    folder = tmp_path_factory.mktemp("s3")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("CONFIG", "SHARED_CREDENTIALS"):
            monkeypatch.setenv(f"AWS_{name}_FILE", str(folder / "none"))
        for name in ("PROFILE", "SESSION_TOKEN", "ENDPOINT_URL_S3"):
            monkeypatch.delenv(f"AWS_{name}", raising=False)
        monkeypatch.setattr(cloud_store, "load_dotenv", lambda: None)
        variables = connect(folder)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        files().mkdir("bucket")
        small_store("s3://bucket/small.zarr", chunk=FEW)
        yield variables
    disconnect(folder)


def files() -> s3fs.S3FileSystem:
    return s3fs.S3FileSystem(skip_instance_cache=True)


@pytest.fixture
def proxy(server, monkeypatch) -> Iterator[FaultyProxy]:
    """The way to the server."""
    with FaultyProxy(server["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def one_line(error: pytest.ExceptionInfo[CloudError], place: str) -> str:
    """The message, which names the store."""
    assert isinstance(error.value, UserError)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{place}: ")
    return message.removeprefix(f"{place}: ")
