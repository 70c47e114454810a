"""Faults of the store: survived, or the end of the run; never fill values."""

import random
import time
from functools import partial

import numpy as np
import pytest

from src.data.statistics import add_statistics
from src.data.store import embedded_server
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.errors import UserError
from tests.fault_proxy import FaultyProxy
from tests.layouts import SETTINGS, URL, build_small, cube_fields

READERS = {
    "xarray": partial(CloudDataset, "train", dask="none"),
    "dask": partial(CloudDataset, "train"),
}
readers = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@pytest.fixture
def proxy(monkeypatch):
    build_small()
    with FaultyProxy(embedded_server(URL)["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        yield proxy
        proxy.shutdown()


@pytest.fixture
def store(tmp_path) -> tuple[dict, dict]:
    """Settings of a store in a folder, and a chunk of it that sample 0 needs."""
    build_small(str(tmp_path))
    return SETTINGS | {"url": str(tmp_path)}, tmp_path / "salinity/c/0/0/0"


@pytest.mark.slow
@readers
@pytest.mark.parametrize("fault", [503, 500, "refused", "silence"])
def test_an_outage_shorter_than_patience_is_survived(proxy, reader, fault):
    """Though the library gives up earlier. Broken by: no loop in get."""
    settings = {"url": URL, "variables": ["salinity"], **SETTINGS}
    expected = CloudDataset("train", **settings)[0][0]
    dataset = reader(**settings)
    times = 1 if fault == "silence" else 3
    proxy.fail(fault, times)
    np.testing.assert_array_equal(dataset[0][0], expected)
    assert max(proxy.asked.values()) > times


@pytest.mark.slow
@readers
@pytest.mark.parametrize("fault", [503, "refused", "silence"])
def test_a_longer_one_ends_in_one_line(proxy, reader, fault):
    """And not before patience. Broken by: no timeout_at, or no `> deadline`, in get."""
    reader(url=URL, **SETTINGS)  # a first connection may take longer than 4 s
    dataset = reader(url=URL, patience=4, **SETTINGS)
    proxy.fail(fault)
    start = time.monotonic()
    with pytest.raises(UserError, match=r"^s3://.* in 4 s"):
        dataset[0]
    assert time.monotonic() - start >= 4


@readers
def test_a_lost_chunk_is_named(store, reader):
    """Never read as land, nor as dates. Broken by: no `value is None` in get; no is_unique."""
    settings, chunk = store
    chunk.unlink()
    with pytest.raises(UserError, match="salinity/c/0/0/0"):
        reader(**settings)[0]
    (chunk.parents[4] / "time/c/0").unlink()
    with pytest.raises(UserError, match="time has a value twice"):
        reader(**settings)


@readers
def test_a_flipped_bit_is_found(store, reader):
    """Each one. Broken by: no checksum in begin."""
    settings, chunk = store
    dataset = reader(**settings)
    whole = chunk.read_bytes()
    for bit in random.sample(range(8 * len(whole)), 16):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        chunk.write_bytes(damaged)
        with pytest.raises((UserError, RuntimeError, ValueError)):
            dataset[0]


@readers
@pytest.mark.parametrize("fill", [np.nan, 0.0])
def test_a_missing_chunk_may_be_land(tmp_path, reader, fill):
    """If told so, and if the store means it. Broken by: has_land; no check_land."""
    fields = cube_fields((24, 18, 36), (12, 9, 18))[["salinity"]].load()
    fields["salinity"][:, :9, :18] = fill
    to = str(tmp_path)
    url = f"{to}/store"
    encoding = {"salinity": {"fill_value": fill, "_FillValue": fill or -9.0}}
    fields.chunk(time=12, lat=9, lon=18).to_zarr(url, encoding=encoding, zarr_format=3)
    assert not (tmp_path / "store/salinity/c/0/0/0").exists()
    arguments = [url, SETTINGS["train_period"], None, None, to, False]
    with pytest.raises(UserError, match="is missing"):
        add_statistics(*arguments)
    if fill == 0:
        with pytest.raises(UserError, match=r"read as 0\.0, not as land"):
            add_statistics(*arguments, "land")
        return
    add_statistics(*arguments, "land")
    settings = {"url": url, "statistics_store": to, "missing_chunks": "land"}
    assert reader(**SETTINGS, **settings)[0][0].isnan().all()
