"""What faults get from the fast reader: retries that are counted, a limit, one clear line."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
from src.config import CHAPTER
from src.data import fast_dataset
from src.data.cloud_errors import CloudError
from src.data.cloud_store import SILENCE
from src.data.fast_dataset import FastDataset
from src.data.fast_store import embedded_credentials, key_value_store
from src.data.pack import pack
from src.data.s3_proxy import Fault
from src.data.s3_server import FOLDER, connect

from tests.cloud_server import FEW, files, one_line
from tests.cloud_server import proxy as proxy  # fixtures
from tests.cloud_server import server as server
from tests.cloud_stores import SMALL, assert_same_samples, dataset
from tests.cloud_stores import url as url  # a fixture

PLACE = "s3://bucket/small.zarr"


def fast(place: str = PLACE, **settings) -> FastDataset:
    return FastDataset("train", url=place, **(SMALL | settings))


def impatient(monkeypatch: pytest.MonkeyPatch, **settings) -> FastDataset:
    """Its reads end after a second; opening has the time that it needs on busy cores."""
    seen, context = [], fast_dataset.read_context

    def read_context(concurrency, cache_mb, patience):
        seen.append(patience)
        return context(concurrency, cache_mb, 1.0)

    monkeypatch.setattr(fast_dataset, "read_context", read_context)
    ours = fast(patience=30.0, **settings)
    assert set(seen) == {30.0}
    ours.patience = 1.0
    return ours


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize(
    ("kind", "packed"),
    # A stall takes SILENCE to be found out.
    [*product(["503", "reset", "cut"], [False, True]), ("stall", True)],
)
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
def test_persistent_fault_ends_the_read(proxy, monkeypatch, kind, message):
    """When its patience is at an end, which counts the pauses between the tries."""
    ours = impatient(monkeypatch)
    proxy.faults.append(Fault(kind, "GET", "/a/c/", times=None))
    ours.prefetch([4, 5])
    start = time.monotonic()
    with pytest.raises(CloudError) as caught:
        ours[3]
    assert time.monotonic() - start < 3 * SILENCE
    assert message in one_line(caught, PLACE)
    assert not ours._pending


@pytest.mark.slow
@pytest.mark.parametrize("disk_cache", [None, "cache"])
def test_end_of_the_program_waits_for_no_request(proxy, tmp_path, disk_cache):
    """Python waits for all threads at its end, and these would wait for an hour."""
    proxy.faults.append(Fault("stall", "GET", "/a/c/", times=None))
    settings = SMALL | {"patience": 3600.0, "disk_cache": disk_cache and str(tmp_path / disk_cache)}
    code = "from src.data.fast_dataset import FastDataset as F\n"
    code += f"F('train', url={PLACE!r}, **{settings}).prefetch([0, 1, 2]); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=CHAPTER, stdin=subprocess.PIPE, text=True) as process:
        proxy.wait_for("GET", "/a/c/", timeout=60)
        process.communicate("\n", timeout=120)
    assert process.returncode == 0


@pytest.mark.slow(copies=True)
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


def test_cache_on_disk(url, proxy, monkeypatch, tmp_path):
    """It counts what the store was asked for, retries, and keeps no half of an object."""
    folder = str(tmp_path / "cache")
    ours = impatient(monkeypatch, disk_cache=folder)
    before, seen = ours.counts[0].clone(), len(proxy.requests)
    proxy.faults.append(Fault("503", "GET", "/c/", times=1))
    assert_same_samples(ours, dataset(url), range(6))
    requests, retries, _ = (ours.counts[0] - before).tolist()
    assert retries == 1
    assert requests == len(proxy.requests) - seen
    before, seen = ours.counts[0].clone(), len(proxy.requests)
    assert_same_samples(ours, dataset(url), range(6))
    assert (ours.counts[0] - before).tolist() == [0, 0, 0]
    assert len(proxy.requests) == seen
    proxy.faults.append(Fault("cut", "GET", "/a/c/", times=None))
    with pytest.raises(CloudError) as caught:
        ours.__getitems__(range(6, len(ours)))
    assert "(reading a/c/" in one_line(caught, PLACE)
    proxy.faults.clear()
    assert_same_samples(ours, dataset(url))


def test_wrong_secret_while_it_reads(server, monkeypatch):
    """A key that is withdrawn is told at once; no secret is told with it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    with pytest.raises(CloudError) as caught:
        fast()
    assert "access denied" in one_line(caught, PLACE)
    assert "planted" not in str(caught.value)


def test_embedded_credentials_are_for_this_user_alone():
    """Also when all ranks and workers want them at once; nothing is left of their tries."""
    path = FOLDER / "credentials"
    key_value_store("s3://embedded/x/", anonymous=False)
    own = connect()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            path.unlink()
            places = list(pool.map(lambda _: embedded_credentials(own), range(32)))
    assert all(place == places[0] for place in places)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in FOLDER.glob("tmp*")] == []
    secret = path.read_text().split("aws_secret_access_key = ")[1].strip()
    assert len(secret) == 40
    assert secret not in str(places)
