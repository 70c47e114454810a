"""What is missing or broken is one clear line, and never passes for data."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from src.data import cloud_store
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import open_fields_lazily
from src.data.cloud_store import METADATA, open_store, split_key
from src.data.loader_settings import start_forkserver
from torch.utils.data import DataLoader
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tests.cloud_server import files, one_line
from tests.cloud_server import proxy as proxy  # fixtures
from tests.cloud_server import server as server
from tests.cloud_stores import dataset, small_fields, small_store
from tests.cloud_stores import url as url  # a fixture

SHARDED = {"chunk": (5, 4, 4), "shard": (10, 8, 8)}


def copy_of(name: str, folder: Path, build: Callable[[str], object]) -> str:
    """A store that is built once in a run of the tests."""
    original = folder.parent / "originals" / name
    if not original.exists():
        build(str(original))
    return str(shutil.copytree(original, folder / name))


def v3(folder: Path) -> str:
    return copy_of("v3", folder, small_store)


def v2(folder: Path) -> str:
    fields = small_fields()
    encoding = {name: {"chunks": (5, 4, 7)} for name in fields.data_vars}
    settings = {"zarr_format": 2, "consolidated": False, "encoding": encoding}
    return copy_of("v2", folder, partial(fields.to_zarr, **settings))


def sharded(folder: Path) -> str:
    return copy_of("sharded", folder, partial(small_store, **SHARDED))


def remote(folder: Path) -> str:
    """The server copies it, object by object, which is faster than to write it."""
    files().copy("bucket/small.zarr", f"bucket/{folder.name}.zarr", recursive=True)
    return f"s3://bucket/{folder.name}.zarr"


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


STRIDE = (3, 3, 5)  # of windows that cover all chunks


def in_samples(place: str, statistics: str) -> None:
    ours = dataset(place, statistics_url=statistics, train_stride=STRIDE)
    ours.__getitems__(range(len(ours)))


def in_samples_with_dask(place: str, statistics: str) -> None:
    ours = dataset(place, statistics_url=statistics, train_stride=STRIDE, dask="threads")
    ours.__getitems__(range(len(ours)))


def in_a_worker(place: str, statistics: str, context: str = "forkserver") -> None:
    ours = dataset(place, statistics_url=statistics, train_stride=STRIDE)
    if context == "forkserver":
        start_forkserver()
    loader = DataLoader(ours, 8, num_workers=1, multiprocessing_context=context)
    batches = iter(loader)
    try:
        for _ in batches:
            pass
    finally:  # left to the garbage collector it would hold up a later test for seconds
        batches._shutdown_workers()


@pytest.mark.slow(copies=True)
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
# A forkserver may have started in an earlier test, with another environment.
@pytest.mark.parametrize(("make", "context"), [(v3, "forkserver"), (remote, "spawn")])
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
