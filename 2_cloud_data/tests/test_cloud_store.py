"""No fault passes for data: what is missing, broken or out of reach is one clear line, in time."""

import random
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import s3fs
from src.data import cloud_store
from src.data.cloud_fields import open_fields_lazily
from src.data.cloud_store import METADATA, CloudError, open_store, split_key
from src.data.s3_proxy import Fault, FaultyProxy
from src.data.s3_server import connect, disconnect
from src.errors import UserError
from torch.utils.data import DataLoader
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tests.cloud_stores import assert_same_samples, dataset, small_fields, small_store
from tests.cloud_stores import url as url  # a fixture

SOON = 10.0  # seconds; a wrong address should not take longer to find out
SHARDED = {"chunk": (5, 4, 4), "shard": (10, 8, 8)}


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
        small_store("s3://bucket/small.zarr")
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


def v3(folder: Path) -> str:
    small_store(str(folder / "v3"))
    return str(folder / "v3")


def v2(folder: Path) -> str:
    fields = small_fields()
    encoding = {name: {"chunks": (5, 4, 7)} for name in fields.data_vars}
    fields.to_zarr(folder / "v2", zarr_format=2, consolidated=False, encoding=encoding)
    return str(folder / "v2")


def sharded(folder: Path) -> str:
    small_store(str(folder / "sharded"), **SHARDED)
    return str(folder / "sharded")


def remote(folder: Path) -> str:
    name = f"s3://bucket/{folder.name}.zarr"
    small_store(name)
    return name


STORES = [v3, v2, sharded, pytest.param(remote, marks=pytest.mark.slow)]


def chunk_path(place: str) -> str:
    """The chunk 1, 1, 1 of the array a, which windows of the training need."""
    return f"{place}/a/1.1.1" if place.endswith("v2") else f"{place}/a/c/1/1/1"


def remove(path: str) -> None:
    if path.startswith("s3://"):
        files().rm_file(path)
    else:
        Path(path).unlink()


def halve(path: str) -> None:
    """Replace an object by its first half."""
    if path.startswith("s3://"):
        files().pipe_file(path, files().cat_file(path)[: files().size(path) // 2])
    else:
        content = Path(path).read_bytes()
        Path(path).write_bytes(content[: len(content) // 2])


def with_xarray(place: str, statistics: str) -> None:
    open_fields_lazily(open_store(place))["a"].load()


def with_dask(place: str, statistics: str) -> None:
    open_fields_lazily(open_store(place), with_dask=True)["a"].load(scheduler="threads")


def in_samples(place: str, statistics: str) -> None:
    ours = dataset(place, statistics_url=statistics)
    ours.__getitems__(range(len(ours)))


def in_samples_with_dask(place: str, statistics: str) -> None:
    ours = dataset(place, statistics_url=statistics, dask="threads")
    ours.__getitems__(range(len(ours)))


def in_a_worker(place: str, statistics: str, context: str = "forkserver") -> None:
    ours = dataset(place, statistics_url=statistics)
    loader = DataLoader(ours, 8, num_workers=1, multiprocessing_context=context)
    for _ in loader:
        pass


def one_line(error: pytest.ExceptionInfo[CloudError], place: str) -> str:
    """The message, which names the store."""
    assert isinstance(error.value, UserError)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{place}: ")
    return message.removeprefix(f"{place}: ")


@pytest.mark.parametrize("make", STORES)
def test_missing_chunk_is_an_error(server, url, tmp_path, make):
    """However it is read."""
    place = make(tmp_path)
    for read in (with_xarray, with_dask, in_samples, in_samples_with_dask):
        read(place, url)
    remove(chunk_path(place))
    chunk = "1.1.1" if make is v2 else "1/1/1"
    for read in (with_xarray, with_dask, in_samples, in_samples_with_dask):
        with pytest.raises(CloudError) as caught:
            read(place, url)
        assert one_line(caught, place) == f"chunk {chunk} of the array a is missing"


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
@pytest.mark.parametrize("make", [v3, remote])
def test_missing_chunk_in_a_worker_is_the_same_line(server, url, tmp_path, make, context):
    place = make(tmp_path)
    remove(chunk_path(place))
    with pytest.raises(CloudError) as caught:
        in_a_worker(place, url, context)
    assert one_line(caught, place) == "chunk 1/1/1 of the array a is missing"


@pytest.mark.parametrize(
    ("name", "array"), [("time/c/0", "time"), ("statistics/0-12/mean/c/0", "statistics/0-12/mean")]
)
def test_missing_coordinates_and_statistics(tmp_path, name, array):
    place = v3(tmp_path)
    remove(f"{place}/{name}")
    with pytest.raises(CloudError) as caught:
        dataset(place)
    assert one_line(caught, place) == f"chunk 0 of the array {array} is missing"


@pytest.mark.slow
def test_embedded_is_the_chapters_own_server(server, monkeypatch):
    """Whatever the environment names."""
    monkeypatch.setattr(cloud_store, "connect", lambda: server)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "somebody-else")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    place = "s3://embedded/small.zarr"
    small_store(place)
    in_samples(place, place)
    store = open_store(place, writable=True)
    sync(store.delete("a/c/1/1/1"))
    with pytest.raises(CloudError) as caught:
        in_samples(place, place)
    assert one_line(caught, place) == "chunk 1/1/1 of the array a is missing"


def test_chunks_may_be_missing_while_they_are_written(tmp_path):
    place = v3(tmp_path)
    remove(chunk_path(place))
    fields = open_fields_lazily(open_store(place, writable=True))
    assert np.isnan(fields["a"][5:10, 4:8, 7:14]).all()
    small_store(place, overwrite=True)
    in_samples(place, place)


def test_metadata_may_be_missing(server, tmp_path):
    """Which is how zarr finds out about formats and groups."""
    for place in (str(tmp_path), "s3://bucket/nothing"):
        store = open_store(place)
        for key in METADATA:
            for name in (key, f"a/{key}"):
                assert sync(store.get(name, default_buffer_prototype())) is None
        with pytest.raises(CloudError, match="chunk 0/0 of the array a is missing"):
            sync(store.get("a/c/0/0", default_buffer_prototype()))


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("sst/c/0/1", ("sst", "0/1")),
        ("sst/0.1", ("sst", "0.1")),
        ("statistics/mean/c", ("statistics/mean", "c")),
        ("c/c/0", ("c", "0")),
        ("statistics/c/c/0", ("statistics/c", "0")),
    ],
)
def test_names_in_a_key(key, parts):
    array, _, chunk = split_key(key)
    assert (array, chunk) == parts


def test_partial_reads_are_checked(tmp_path):
    place = v3(tmp_path)
    store, prototype = open_store(place), default_buffer_prototype()
    (whole,) = sync(store.get_partial_values(prototype, [("a/c/1/1/1", None)]))
    assert whole.to_bytes() == Path(chunk_path(place)).read_bytes()
    assert store.counts.tolist() == [1, 0, len(whole)]
    remove(chunk_path(place))
    with pytest.raises(CloudError, match="missing"):
        sync(store.get_partial_values(prototype, [("a/c/1/1/1", None)]))
    with pytest.raises(CloudError, match="missing"):
        sync(store.with_read_only(True).get("a/c/1/1/1", prototype))


@pytest.mark.parametrize("kind", ["503", "reset", "cut"])
@pytest.mark.parametrize("mode", ["none", "threads"])
def test_read_survives_a_fault(url, proxy, kind, mode):
    """Twice; each is seen and counted."""
    ours, place = dataset("s3://bucket/small.zarr", dask=mode), dataset(url)
    before, seen = ours.counts[0].clone(), len(proxy.requests)
    proxy.faults.append(Fault(kind, "GET", "/a/c/", times=2))
    assert_same_samples(ours, place, range(4))
    assert proxy.faults[0].taken == 2
    requests, retries, num_bytes = (ours.counts[0] - before).tolist()
    assert num_bytes > 0
    if kind == "reset":  # aiohttp itself repeats a request on a connection that it used before
        assert retries <= 2
    else:
        assert retries == 2
        assert requests == len(proxy.requests) - seen > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("stall", "no answer within 2 s (reading a/c/"),
        ("503", "SlowDown"),
        ("reset", "(reading a/c/"),
        ("cut", "(reading a/c/"),
    ],
)
def test_persistent_fault_ends_the_read(proxy, kind, message):
    """When its patience is at an end."""
    place = "s3://bucket/small.zarr"
    ours = dataset(place, patience=2.0)
    proxy.faults.append(Fault(kind, "GET", "/a/c/", times=None))
    start = time.monotonic()
    with pytest.raises(CloudError) as caught:
        ours[3]
    assert time.monotonic() - start < SOON
    assert message in one_line(caught, place)


def test_stall_costs_one_request(url, proxy, monkeypatch):
    """Not the whole patience: the next request may be answered."""
    monkeypatch.setattr(cloud_store, "REQUEST", 1.0)
    ours = dataset("s3://bucket/small.zarr")
    proxy.faults.append(Fault("stall", "GET", "/a/c/"))
    assert_same_samples(ours, dataset(url), range(4))
    assert ours.counts[0, 1] == 1


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return f"http://127.0.0.1:{door.getsockname()[1]}"


WRONG = {
    "secret": (
        "s3://bucket/small.zarr",
        {"AWS_SECRET_ACCESS_KEY": "planted-secret"},
        r"access denied: wrong credentials, or no right to read here \(reading zarr.json\)",
    ),
    "key": (
        "s3://bucket/small.zarr",
        {"AWS_ACCESS_KEY_ID": "planted-secret"},
        r"access denied: wrong credentials, or no right to read here \(reading zarr.json\)",
    ),
    "no credentials": (
        "s3://bucket/small.zarr",
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, see .*",
    ),
    "half the credentials": (
        "s3://bucket/small.zarr",
        {"AWS_SECRET_ACCESS_KEY": None},
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, see .*",
    ),
    "bucket": ("s3://no-such-bucket/small.zarr", {}, "there is no bucket no-such-bucket"),
    "store": (
        "s3://bucket/no/such.zarr",
        {},
        "there is no Zarr store here; build_store.py makes one",
    ),
    "closed port": (
        "s3://bucket/small.zarr",
        {"AWS_ENDPOINT_URL": closed_port()},
        r'Could not connect to the endpoint URL: "http://127.*small.zarr/zarr.json" .*',
    ),
    "unknown host": (
        "s3://bucket/small.zarr",
        {"AWS_ENDPOINT_URL": "http://nowhere.invalid"},
        r'Could not connect to the endpoint URL: "http://nowhere.*',
    ),
    "no URL": (
        "s3://bucket/small.zarr",
        {"AWS_ENDPOINT_URL": "nowhere"},
        "Invalid endpoint: nowhere .*",
    ),
    "protocol": ("s4://bucket/small.zarr", {}, "Protocol not known: s4"),
    "folder": ("/no/such/folder", {}, "there is no Zarr store here; build_store.py makes one"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_address_is_soon_found_out(server, monkeypatch, case):
    """One line, which holds no secret."""
    place, environment, message = WRONG[case]
    for name, value in environment.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    # The longest pauses that chance has to offer.
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    start = time.monotonic()
    with pytest.raises(CloudError) as caught:
        dataset(place)
    seconds = time.monotonic() - start
    found = one_line(caught, place)
    assert re.fullmatch(message, found)
    for secret in ("planted-secret", server["AWS_SECRET_ACCESS_KEY"], server["AWS_ACCESS_KEY_ID"]):
        assert secret not in found
    assert seconds < SOON


@pytest.mark.slow
def test_stalled_endpoint_is_soon_found_out(proxy):
    """It accepts, and says nothing."""
    proxy.faults.append(Fault("stall", times=None))
    start = time.monotonic()
    with pytest.raises(CloudError) as caught:
        dataset("s3://bucket/small.zarr")
    assert time.monotonic() - start < SOON
    assert one_line(caught, "s3://bucket/small.zarr").startswith("no answer within 7 s")


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_credentials_are_tried_once(proxy, monkeypatch, name):
    monkeypatch.setenv(name, "wrong")
    counts = np.zeros(3, np.int64)
    with pytest.raises(CloudError, match="access denied"):
        open_fields_lazily(open_store("s3://bucket/small.zarr", counts=counts))
    assert counts[1] == 0
    # zarr asks for the metadata of both formats at once.
    assert len(proxy.requests) == counts[0] <= 4


def test_no_right_is_not_no_bucket(server, monkeypatch):
    """Who may not ask for the bucket is not told that it is not there."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert open_store("s3://bucket/x").bucket_exists()
    monkeypatch.undo()
    assert open_store("s3://bucket/x").bucket_exists()
    assert not open_store("s3://no-such-bucket/x").bucket_exists()


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("read", [in_samples, in_samples_with_dask])
def test_truncated_object_is_named(server, url, tmp_path, make, read):
    place = make(tmp_path)
    halve(chunk_path(place))
    with pytest.raises(CloudError) as caught:
        read(place, url)
    assert one_line(caught, place).startswith("chunk 1/1/1 of the array a is broken: ")


@pytest.mark.slow
def test_truncated_object_in_a_worker_is_the_same_line(url, tmp_path):
    place = v3(tmp_path)
    halve(chunk_path(place))
    messages = set()
    for read in (in_samples, in_a_worker):
        with pytest.raises(CloudError) as caught:
            read(place, url)
        messages.add(one_line(caught, place))
    assert len(messages) == 1


def test_store_that_vanishes_while_it_is_read(tmp_path):
    place = v3(tmp_path)
    ours = dataset(place)
    shutil.rmtree(place)
    with pytest.raises(CloudError) as caught:
        ours[0]
    assert "of the array a is missing" in one_line(caught, place)
