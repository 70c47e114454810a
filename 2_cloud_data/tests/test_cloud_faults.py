"""A network that fails is tried again; what is out of reach is one clear line, in time."""

import errno
import random
import re
import socket
import time

import numpy as np
import pytest
from src.data import cloud_store
from src.data.cloud_errors import CloudError, may_pass
from src.data.cloud_fields import bucket_exists, open_fields_lazily
from src.data.cloud_store import open_store
from src.data.s3_proxy import Fault
from src.data.usecase_cloud_dataset import CloudDataset

from tests.cloud_server import FEW, one_line
from tests.cloud_server import proxy as proxy  # fixtures
from tests.cloud_server import server as server
from tests.cloud_stores import assert_same_samples, dataset, small_store
from tests.cloud_stores import url as url  # a fixture

SOON = 10.0  # seconds; a wrong address should not take longer to find out


@pytest.mark.slow(copies=True)
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


@pytest.mark.parametrize("kind", ["503", "reset"])
def test_listings_survive_a_fault(proxy, kind):
    """Zarr lists the arrays of a group when it opens it."""
    proxy.faults.append(Fault(kind, "GET", "list-type=2", times=2))
    counts = np.zeros(3, np.int64)
    store = open_store("s3://bucket/small.zarr", counts=counts)
    assert {"a", "b"} <= set(open_fields_lazily(store))
    assert proxy.faults[0].taken == 2
    assert counts[1] == 2 or kind == "reset"


@pytest.mark.slow(copies=True)
def test_writing_survives_a_fault(proxy):
    proxy.faults.append(Fault("503", "PUT", times=3))
    small_store("s3://bucket/again.zarr", chunk=FEW)
    assert proxy.faults[0].taken == 3
    assert len(dataset("s3://bucket/again.zarr"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk_is_not_tried_again(number):
    assert not may_pass(OSError(number, "full"))


def test_credentials_in_a_url_are_refused():
    with pytest.raises(CloudError, match=r"^s3: credentials do not belong into a URL") as caught:
        open_store("s3://planted-key:planted-secret@bucket/small.zarr")
    assert "planted" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("stall", "no answer within 1 s (reading a/c/"),
        ("503", "SlowDown"),
        ("reset", "(reading a/c/"),
        ("cut", "(reading a/c/"),
    ],
)
def test_persistent_fault_ends_the_read(proxy, monkeypatch, kind, message):
    """When its patience is at an end; opening has the time that it needs on busy cores."""
    place, stores, open_it = "s3://bucket/small.zarr", [], CloudDataset.store

    def store(*given, **settings):
        stores.append(open_it(*given, **settings))
        return stores[-1]

    monkeypatch.setattr(CloudDataset, "store", store)
    ours = dataset(place, patience=30.0)
    assert [store.patience for store in stores] == [30.0]
    stores[0].patience = 1.0
    proxy.faults.append(Fault(kind, "GET", "/a/c/", times=None))
    start = time.monotonic()
    with pytest.raises(CloudError) as caught:
        ours[3]
    assert time.monotonic() - start < SOON
    assert message in one_line(caught, place)


def test_stall_costs_one_request(url, proxy, monkeypatch):
    """Not the whole patience: the next request may be answered."""
    monkeypatch.setattr(cloud_store, "SILENCE", 1.0)
    ours = dataset("s3://bucket/small.zarr")
    proxy.faults.append(Fault("stall", "GET", "/a/c/"))
    assert_same_samples(ours, dataset(url), range(4))
    assert ours.counts[0, 1] == 1


DOOR = socket.socket()  # bound and not listening: it refuses, and no other process gets the port
DOOR.bind(("127.0.0.1", 0))


def closed_port() -> str:
    return f"http://127.0.0.1:{DOOR.getsockname()[1]}"


WRONG = {
    "secret": (
        "s3://bucket/small.zarr",
        {"AWS_SECRET_ACCESS_KEY": "planted-secret"},
        r"access denied: wrong credentials, or no right to do this here \(reading .*\)",
    ),
    "key": (
        "s3://bucket/small.zarr",
        {"AWS_ACCESS_KEY_ID": "planted-secret"},
        r"access denied: wrong credentials, or no right to do this here \(reading .*\)",
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
        "Invalid endpoint: nowhere",
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
    # A test below waits as long as the user does; here a part of it will do.
    saved = cloud_store.OPENING - 1.0
    monkeypatch.setattr(cloud_store, "OPENING", 1.0)
    start = time.monotonic()
    with pytest.raises(CloudError) as caught:
        dataset(place)
    seconds = time.monotonic() - start + saved
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
    # zarr asks for the metadata of both formats at once, and raises when the first one answers.
    paths = [request.path for request in proxy.requests]
    assert len(set(paths)) == len(paths) <= counts[0] <= 4


def test_no_right_is_not_no_bucket(server, monkeypatch):
    """Who may not ask for the bucket is not told that it is not there."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert bucket_exists(open_store("s3://bucket/x"), "bucket")
    monkeypatch.undo()
    assert bucket_exists(open_store("s3://bucket/x"), "bucket")
    assert not bucket_exists(open_store("s3://no-such-bucket/x"), "no-such-bucket")
