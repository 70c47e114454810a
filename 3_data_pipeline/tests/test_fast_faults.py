"""What faults get from the fast reader: retries that are counted, a limit, one clear line."""

import time

import pytest
from src.data.cloud_errors import CloudError
from src.data.cloud_store import SILENCE
from src.data.fast_dataset import FastDataset
from src.data.fast_store import key_value_store
from src.data.pack import pack
from src.data.s3_proxy import Fault
from src.data.s3_server import FOLDER

from tests.cloud_server import FEW, files, one_line
from tests.cloud_server import proxy as proxy  # fixtures
from tests.cloud_server import server as server
from tests.cloud_stores import SMALL, assert_same_samples, dataset
from tests.cloud_stores import url as url  # a fixture

PLACE = "s3://bucket/small.zarr"


def fast(place: str = PLACE, **settings) -> FastDataset:
    return FastDataset("train", url=place, **(SMALL | settings))


STALL = pytest.param("stall", marks=pytest.mark.slow)  # it takes SILENCE to find out


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["503", "reset", "cut", STALL])
def test_read_survives_a_fault(url, proxy, kind, packed):
    """Twice; each is counted."""
    place = PLACE
    if packed:
        place = "s3://bucket/packed.zarr"
        if not files().exists(place):
            files().copy(PLACE, place, recursive=True)
            pack(place, FEW)
    ours = fast(place, packed=packed)
    ours[0]
    before, seen = ours.counts[0].clone(), len(proxy.requests)
    proxy.faults.append(Fault(kind, "GET", "/c/", times=2))
    assert_same_samples(ours, dataset(url), range(4))
    assert proxy.faults[0].taken == 2
    requests, retries, num_bytes = (ours.counts[0] - before).tolist()
    assert num_bytes > 0
    if kind == "reset":  # curl itself repeats a request on a connection that it used before
        assert retries <= 2
    else:
        assert retries == 2
        assert requests == len(proxy.requests) - seen


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("503", "SlowDown"),
        ("reset", "(reading a/c/"),
        ("cut", "(reading a/c/"),
        pytest.param("stall", "no answer within 10 s", marks=pytest.mark.slow),
    ],
)
def test_persistent_fault_ends_the_read(proxy, kind, message):
    """When its patience is at an end, which counts the pauses between the tries."""
    ours = fast(patience=0.15)
    proxy.faults.append(Fault(kind, "GET", "/a/c/", times=None))
    start = time.monotonic()
    with pytest.raises(CloudError) as caught:
        ours[3]
    assert time.monotonic() - start < 3 * SILENCE
    assert message in one_line(caught, PLACE)
    assert not ours._pending


@pytest.mark.parametrize("packed", [False, True])
def test_missing_and_broken_chunks_are_named(server, packed, tmp_path):
    """They never pass for land."""
    place = f"s3://bucket/{tmp_path.name}.zarr"
    files().copy(PLACE, place, recursive=True)
    pack(place, FEW)
    array = "packed/fields" if packed else "a"
    name = f"{place}/{array}/c/0/1/1/1" if packed else f"{place}/{array}/c/1/1/1"
    every = range(len(fast(place, packed=packed)))
    number = "0/1/1/1" if packed else "1/1/1"
    files().pipe_file(name, files().cat_file(name)[:40])
    with pytest.raises(CloudError) as caught:
        fast(place, packed=packed).__getitems__(every)
    assert one_line(caught, place).startswith(f"chunk {number} of the array {array} is broken: ")
    files().rm_file(name)
    with pytest.raises(CloudError) as caught:
        fast(place, packed=packed).__getitems__(every)
    assert one_line(caught, place) == f"chunk {number} of the array {array} is missing"


def test_wrong_secret_while_it_reads(server, monkeypatch):
    """A key that is withdrawn is told at once; no secret is told with it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    with pytest.raises(CloudError) as caught:
        fast()
    assert "access denied" in one_line(caught, PLACE)
    assert "planted" not in str(caught.value)


def test_embedded_credentials_are_for_this_user_alone():
    place = key_value_store("s3://embedded/x/", anonymous=False)
    path = FOLDER / "credentials"
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_text().split("aws_secret_access_key=")[1].strip()
    assert len(secret) == 40
    assert secret not in str(place)


PLACES = {
    "gs://bucket/x/": {"driver": "gcs", "bucket": "bucket", "path": "x/"},
    "https://host.org/data/x/": {
        "driver": "http",
        "base_url": "https://host.org",
        "path": "/data/x/",
    },
    "/data/x/": {"driver": "file", "path": "/data/x/"},
}


@pytest.mark.parametrize("place", PLACES)
def test_other_places(place):
    assert key_value_store(place, anonymous=False) == PLACES[place]


def test_place_that_tensorstore_does_not_know():
    with pytest.raises(CloudError, match=r"does not read az://; allowed: s3, gs, https and local"):
        key_value_store("az://container/x/", anonymous=False)
