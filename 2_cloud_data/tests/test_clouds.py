"""Another S3 than the embedded one, which the environment names and which checks each request."""

import runpy

import pytest
from s3fs import S3FileSystem
from zarr.core.sync import sync

from src.data import checked_store
from src.data.build import build
from src.data.cube import cube_fields
from src.data.s3_server import answers
from src.data.store import open_fields, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.errors import UserError
from tests.fault_proxy import FaultyProxy, Handler
from tests.strict_server import BUCKET, secret, strict_server

pytestmark = pytest.mark.slow
URL = f"s3://{BUCKET}/store.zarr"
CHUNK = (12, 8, 16)
FIELDS = cube_fields((24, 8, 16), CHUNK)[["salinity"]]
TRAIN = ("1900-01", "1901-04")
SETTINGS = {
    "dask": "none",
    "window": (4, 8, 16),
    "train_stride": (4, 8, 16),
    "train_period": TRAIN,
    "val_period": ("1901-09", "1901-12"),
}


class Cloud(Handler):
    """Notes each request. Denies what does not exist to who may not list, as AWS does.

    SeaweedFS does so for HEAD, and answers 404 to GET.
    """

    def do_GET(self) -> None:  # noqa: N802
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        may_list = "Credential=admin/" in self.headers.get("Authorization", "")
        if may_list or answers(f"{self.server.buckets}{self.path}"):
            super().do_GET()
        else:
            self.send_error(403)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """No line for each 403."""


def become(monkeypatch, endpoint: str, name: str = "", key: str = "") -> None:
    """Have the keys of this user in the environment, or none."""
    S3FileSystem.clear_instance_cache()  # it does not look at the environment
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    # Nothing of the user who runs the tests.
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, "/dev/null")
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(variable, raising=False)
    # If they are empty, boto takes them for absent, and a file .env does not set them.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key or secret(name))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """A proxy in front of the server, which has a store, and the requests that made it."""
    with (
        strict_server(tmp_path_factory.mktemp("cloud")) as (endpoint, buckets),
        FaultyProxy(endpoint) as proxy,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        proxy.RequestHandlerClass = Cloud
        proxy.requests, proxy.buckets = [], buckets
        become(monkeypatch, proxy.url, "admin")
        build(URL, FIELDS, CHUNK, TRAIN)
        yield proxy


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("local"))
    build(url, FIELDS, CHUNK, TRAIN)
    return read(url)


def read(url: str, **settings):
    """All samples of the training."""
    dataset = CloudDataset("train", url, **SETTINGS, **settings)
    samples = dataset.__getitems__(range(len(dataset)))
    return [x.nan_to_num(-1).tolist() for x, _ in samples]


def test_keys_of_a_profile(cloud, monkeypatch, expected, tmp_path):
    """Broken by: the keys of the embedded server for all buckets (no `if` with BUCKET)."""
    become(monkeypatch, cloud.url)
    lines = f"aws_access_key_id = admin\naws_secret_access_key = {secret('admin')}\n"
    (tmp_path / "credentials").write_text(f"[other]\n{lines}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert read(URL) == expected
    assert "Credential=admin/" in cloud.requests[-1][2]["Authorization"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_other_stores_and_a_reader_who_may_not_list(
    cloud, monkeypatch, expected, zarr_format
):
    """It answers 403 to what is not there, as AWS does; a lost chunk is no land for all that.

    Broken by: in get, no `return None`, or one for chunks, too (no `is_metadata`); no
    PermissionError in open_lazily. Without keys, wrong ones are not sent: no `anon` in open_store.
    """
    url = f"s3://{BUCKET}/{zarr_format}.zarr"
    become(monkeypatch, cloud.url, "admin")
    store = open_store(url, read_only=False)
    FIELDS.to_zarr(store, zarr_format=zarr_format, consolidated=True)
    become(monkeypatch, cloud.url, "admin", "wrong")
    assert read(URL, anonymous=True) == expected
    become(monkeypatch, cloud.url, "reader")
    assert read(URL) == expected
    assert read(url, statistics_store=URL) == expected

    key = "salinity/0.0.0" if zarr_format == 2 else "salinity/c/0/0/0"
    sync(store.delete(key))
    with pytest.raises(UserError, match=rf"^{url}: PermissionError .* \({key}\)"):
        read(url, statistics_store=URL)

    if zarr_format == 2:  # without it, arrays are found by listing
        sync(store.delete(".zmetadata"))
        with pytest.raises(UserError, match=rf"^{url}: access denied .* right to list"):
            open_fields(open_store(url))


def test_wrong_keys(cloud, monkeypatch):
    """One line; what they do not let see is no empty place to build in.

    Broken by: no `store.denied` in open_lazily; no `other.denied` in _with_store; no
    `self.read_only` in get.
    """
    become(monkeypatch, cloud.url, "admin", "mistyped")
    line = rf"^{URL}: access denied \(403.*wrong keys.*$"
    for read_only in (True, False):
        with pytest.raises(UserError, match=line) as caught:
            open_fields(open_store(URL, read_only=read_only))
        assert "mistyped" not in str(caught.value)
    with pytest.raises(UserError, match=rf"^{URL}: PermissionError"):
        build(URL, FIELDS, CHUNK, TRAIN)


def test_region_path_style_and_no_checksums(cloud, monkeypatch):
    """The bucket is no part of the host's name, also if it has one. Not all servers know checksums.

    Broken by: no region_name, or one of the two lines "when_required".
    """
    become(monkeypatch, cloud.url.replace("127.0.0.1", "localhost"), "admin")
    monkeypatch.setenv("AWS_REGION", "eu-north-7")
    url = f"s3://{BUCKET}/region.zarr"
    build(url, FIELDS, CHUNK, TRAIN)
    read(url)
    sent = [r for r in cloud.requests if r[1].startswith(f"/{BUCKET}/region.zarr/")]
    assert {"GET", "PUT"} <= {method for method, _, _ in sent}
    for _, _, headers in sent:
        assert "/eu-north-7/s3/aws4_request" in headers["Authorization"]
        words = " ".join([*headers, *headers.values()]).lower()
        assert "checksum" not in words
        assert "aws-chunked" not in words


def test_a_store_and_its_statistics_share_a_session(cloud, monkeypatch):
    """Broken by: settings that botocore changes in place, such as {"max_attempts": 0}."""
    become(monkeypatch, cloud.url, "admin")  # forgets all sessions
    # As no other test has left them.
    settings = runpy.run_path(checked_store.__file__)["BOTO_SETTINGS"]
    monkeypatch.setattr("src.data.store.BOTO_SETTINGS", settings)
    read(URL)
    assert len(S3FileSystem._cache) == 1
