"""The streamed samples: those of the data in memory, to the bit, however they are read."""

import os
import pickle

import numpy as np
import pytest
import torch
from src.data import cloud_dask
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import open_fields_lazily
from src.data.cloud_statistics import compute_statistics, write_statistics
from src.data.cloud_store import open_store
from src.data.loader_settings import start_forkserver
from src.data.pytorch_dataset import OceanDataset, WindowDataset
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError
from src.reproducibility import worker_init_fn
from torch.utils.data import DataLoader

from tests.cloud_stores import (
    SMALL,
    assert_fork_is_refused,
    assert_same_samples,
    dataset,
    small_fields,
    small_store,
)
from tests.cloud_stores import url as url  # a fixture

MODES = ["none", "single-threaded", "threads"]


def in_memory(split: str, wrap: bool) -> WindowDataset:
    settings = {key: SMALL[key] for key in ("window", "train_months", "val_months")}
    stride = SMALL[f"{split}_stride"]
    return WindowDataset(small_fields(), split, stride=stride, wrap_longitude=wrap, **settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("split", ["train", "val"])
def test_samples_are_those_in_memory(url, split, wrap, mode):
    """Across the edge of the globe too, and from chunks that no window fits."""
    theirs = in_memory(split, wrap)
    ours = dataset(url, split, wrap_longitude=wrap, dask=mode)
    assert_same_samples(ours, theirs)
    assert (ours.variables, ours.units) == (theirs.variables, theirs.units)
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(ours.std, theirs.std)
    for index in (0, len(ours) - 1):
        for one, other in zip(ours.coordinates(index), theirs.coordinates(index), strict=True):
            np.testing.assert_array_equal(one, other)
        climatology = theirs.climatology(index).numpy()
        np.testing.assert_allclose(ours.climatology(index).numpy(), climatology, atol=1e-4)


@pytest.mark.slow
def test_cluster_reads_the_same(url):
    """A cluster of processes, also from the workers of a DataLoader."""
    ours = dataset(url, dask="cluster", dask_threads=1)
    assert_same_samples(ours, in_memory("train", True), range(8))
    loader = DataLoader(ours, 4, num_workers=1, multiprocessing_context="spawn")
    batches = iter(loader)
    x, _ = next(batches)
    expected = torch.stack([ours[index][0] for index in range(4)])
    assert x.nan_to_num(1).equal(expected.nan_to_num(1))
    batches._shutdown_workers()
    client = cloud_dask._clients.pop(os.getpid())  # it would go on to use a processor now and then
    cluster = client.cluster
    client.close()
    cluster.close()


@pytest.mark.slow(copies=True)
def test_the_ocean_from_s3_is_the_ocean_in_memory():
    """The default store, on the real server; statistics included."""
    for split in ("train", "val"):
        ours, theirs = CloudDataset(split), OceanDataset(split)
        assert_same_samples(ours, theirs, range(0, len(theirs), max(1, len(theirs) // 50)))
        assert ours.mean.tolist() == theirs.mean.tolist()
        assert ours.std.tolist() == theirs.std.tolist()


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_yield_the_same_over_epochs(url, num_workers):
    """Each opens the store for itself, in a process that was not forked from this one."""
    ours = dataset(url)
    expected = [ours[index][0] for index in range(len(ours))]
    start_forkserver()
    loader = DataLoader(
        ours,
        batch_size=7,
        num_workers=num_workers,
        persistent_workers=True,
        multiprocessing_context="forkserver",
        worker_init_fn=worker_init_fn,
    )
    for _ in range(2):
        for x, index in loader:
            for sample, number in zip(x, index.tolist(), strict=True):
                assert sample.nan_to_num(1).equal(expected[number].nan_to_num(1))
    # What the workers have read is counted here.
    requests = ours.counts[:, 0]
    assert (requests[1 : 1 + num_workers] > 0).all()
    assert requests[1 + num_workers :].sum() == 0


def test_a_batch_reads_each_chunk_once_with_dask(url):
    """Windows of a batch share chunks."""
    requests = {}
    for mode in ("none", "threads"):
        ours = dataset(url, dask=mode)
        ours[0]
        before = int(ours.counts[0, 0])
        ours.__getitems__([0, 1, 2, 3])
        requests[mode] = int(ours.counts[0, 0]) - before
    assert requests["threads"] < requests["none"]


def test_missing_months_are_in_no_window(tmp_path):
    """A month that the calendar skips, and one without a value in one of the variables."""
    fields = small_fields(26).isel(time=[*range(4), *range(6, 26)])
    fields["b"][8] = np.nan
    small_store(str(tmp_path / "gaps.zarr"), fields)
    ours = dataset(str(tmp_path / "gaps.zarr"))
    assert {start[0] for start in ours.starts} == {0, 1, 4, 5, 9}
    with pytest.raises(UserError, match=r"no 5 months in a row of .* have valid values of a, b"):
        dataset(str(tmp_path / "gaps.zarr"), window=(5, 4, 6), val_months=(18, 24))


def test_a_region_is_a_part_of_the_grid(tmp_path):
    """Its samples are those of a store that holds no more; a broken chunk has its own name."""
    south, north, west, east = 3, 9, 5, 17  # rows and columns
    fields, place = small_fields(), str(tmp_path / "whole")
    small_store(str(tmp_path / "part"), fields.isel(lat=slice(3, 9), lon=slice(5, 17)))
    small_store(place, fields)
    degrees = [*fields.lat.values[[south, north - 1]], *fields.lon.values[[west, east - 1]]]
    store = open_fields_lazily(open_store(place)).isel(lat=slice(3, 9), lon=slice(5, 17))
    found = compute_statistics(store, SMALL["train_months"], (5, 4, 7))
    write_statistics(open_store(str(tmp_path / "statistics"), writable=True), found)
    settings = {"statistics_url": str(tmp_path / "statistics"), "wrap_longitude": False}
    ours = dataset(place, region=degrees, **settings)
    theirs = dataset(str(tmp_path / "part"), wrap_longitude=False)
    assert_same_samples(ours, theirs)
    assert ours.coordinates(0).lat.tolist() == theirs.coordinates(0).lat.tolist()
    (tmp_path / "whole" / "a" / "c" / "0" / "1" / "1").write_bytes(b"")
    with pytest.raises(CloudError, match="chunk 0/1/1 of the array a is broken"):
        ours.__getitems__(range(len(ours)))


def test_variables_in_the_order_of_the_configuration(url):
    ours, swapped = dataset(url), dataset(url, variables=["b", "a"])
    assert swapped.variables == ["b", "a"]
    assert swapped[3][0].nan_to_num(1).equal(ours[3][0].flip(0).nan_to_num(1))
    assert dataset(url, variables=["b"])[3][0].nan_to_num(1).equal(ours[3][0][1:].nan_to_num(1))


REFUSED = {
    "variables": ({"variables": ["c"]}, "data.dataset.variables: c not in .*; allowed: a, b"),
    "window": ({"window": (3, 11, 6)}, r"window: \[3, 11, 6\] .* allowed: up to \[12, 10, 20\]"),
    "region": (
        {"region": (81, 90, 0, 9)},
        r"no lat from 81 to 90.*; allowed: .* within -80 and 80",
    ),
    "zero": ({"window": (0, 4, 6)}, r"window \[0, 4, 6\] and stride .* at least 1"),
    "gap": ({"val_months": (13, 24)}, "1 months away from train_months"),
    "other months": (
        {"train_months": (0, 11)},
        r"statistics of the months \[0,11\]; make .* --url .*small.zarr --train_months \[0,11\]$",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_fit_the_store(url, case):
    settings, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as caught:
        dataset(url, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, 7.0])
def test_nothing_to_learn(tmp_path, value):
    """A region that is all land, and one where nothing changes."""
    fields = small_fields()
    fields["b"][:12] = value
    small_store(str(tmp_path / "store"), fields)
    with pytest.raises(UserError, match=r"b has no values in the months \[0,12\], or the same"):
        dataset(str(tmp_path / "store"))
    assert len(dataset(str(tmp_path / "store"), variables=["a"]))


def test_fork_is_an_error_and_no_hang(url):
    assert_fork_is_refused(dataset(url))


def test_windows_are_counted_and_not_listed(url):
    """A long list of places would need more memory than the model."""
    ours = dataset(url)
    assert len(pickle.dumps(ours)) < 100_000
    assert len(ours) == len(ours.starts) == len(set(ours.starts))
    assert [tuple(s.start for s in ours.slices(i)) for i in range(len(ours))] == ours.starts


OTHER_STORES = {
    "order of the axes": (
        lambda f: f.transpose("lat", "lon", "time"),
        "a in .* has the axes lat, lon, time",
    ),
    "a level too many": (lambda f: f.expand_dims("depth"), "a in .* has the axes depth, time, lat"),
    "type": (
        lambda f: f.fillna(0).astype("int32"),
        "a in .* has the type int32; allowed: floating",
    ),
    "no globe": (
        lambda f: f.isel(lon=slice(15)),
        "covers 270.0 degrees of longitude; allowed: false",
    ),
}


@pytest.mark.parametrize("case", OTHER_STORES)
def test_stores_that_do_not_fit(tmp_path, case):
    """Stores that somebody else has made."""
    change, message = OTHER_STORES[case]
    place = str(tmp_path / "other.zarr")
    if case == "no globe":
        small_store(place, change(small_fields()))
    else:
        change(small_fields()).to_zarr(place, zarr_format=3, consolidated=False)
    with pytest.raises(UserError, match=message):
        dataset(place)
