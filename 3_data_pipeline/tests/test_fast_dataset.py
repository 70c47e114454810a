"""The fast reader's samples: chapter 2's, to the bit, with fewer requests and bounded memory."""

import pickle

import numpy as np
import psutil
import pytest
import xarray as xr
import zarr
from src.data import pack as pack_module
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import open_fields_lazily
from src.data.cloud_statistics import compute_statistics, write_statistics
from src.data.cloud_store import open_store
from src.data.fast_dataset import FastDataset
from src.data.fast_store import PACKED, number_of_retries
from src.data.loader_settings import start_forkserver
from src.data.loaders import make_loaders
from src.data.look_ahead import LookAhead
from src.data.pack import pack
from src.reproducibility import worker_init_fn
from torch.utils.data import DataLoader

from tests.cloud_stores import (
    SMALL,
    assert_same_samples,
    dataset,
    end_forked_workers,
    small_fields,
    small_store,
)

CHUNK = (5, 4, 7)


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    """A store on this machine's disk, with its packed copy."""
    place = str(tmp_path_factory.mktemp("store") / "small.zarr")
    small_store(place, chunk=CHUNK)
    pack(place, CHUNK)
    return place


def fast(url: str, split: str = "train", **settings) -> FastDataset:
    return FastDataset(split, url=url, **(SMALL | settings))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("split", ["train", "val"])
def test_samples_are_chapter_2s(url, split, wrap, packed):
    """Across the edge of the globe too, and from chunks that no window fits."""
    theirs = dataset(url, split, wrap_longitude=wrap)
    ours = fast(url, split, wrap_longitude=wrap, packed=packed)
    assert_same_samples(ours, theirs)
    assert_same_samples(fast(url, split, wrap_longitude=wrap, cache_mb=1.0), theirs)


@pytest.mark.parametrize("packed", [False, True])
def test_variables_in_the_order_of_the_configuration(url, packed):
    for names in (["b", "a"], ["b"]):
        theirs = dataset(url, variables=names)
        assert_same_samples(fast(url, variables=names, packed=packed), theirs, range(5))


@pytest.mark.parametrize("packed", [False, True])
def test_a_region_is_a_part_of_the_grid(url, packed, tmp_path):
    fields = small_fields()
    part = open_fields_lazily(open_store(url)).isel(lat=slice(3, 9), lon=slice(5, 17))
    found = compute_statistics(part, SMALL["train_months"], CHUNK)
    write_statistics(open_store(str(tmp_path / "statistics"), writable=True), found)
    degrees = [*fields.lat.values[[3, 8]], *fields.lon.values[[5, 16]]]
    settings = {"region": degrees, "statistics_url": str(tmp_path / "statistics")}
    settings |= {"wrap_longitude": False}
    assert_same_samples(fast(url, packed=packed, **settings), dataset(url, **settings))


def test_zarr_v2_and_shards(url, tmp_path):
    """Other people's stores; statistics as in the original."""
    fields = small_fields()
    encoding = {name: {"chunks": CHUNK} for name in fields.data_vars}
    v2 = str(tmp_path / "v2")
    fields.to_zarr(v2, zarr_format=2, consolidated=False, encoding=encoding)
    sharded = str(tmp_path / "sharded")
    small_store(sharded, chunk=(5, 4, 4), shard=(10, 8, 8))
    for place in (v2, sharded):
        assert_same_samples(fast(place, statistics_url=url), dataset(url))


def test_a_batch_reads_each_chunk_once(url):
    """Its windows share chunks; TensorStore counts what it reads."""
    ours, indices = fast(url), list(range(0, 40, 3))
    touched = set()
    for index in indices:
        t, y, x = ours.slices(index)
        for column in range(x.start, x.stop):
            for row in range(y.start, y.stop):
                for month in range(t.start, t.stop):
                    touched.add((month // 5, row // 4, column % 20 // 7))
    ours[0]  # counts the opening, too
    before = int(ours.counts[0, 0])
    ours.__getitems__(indices)
    assert int(ours.counts[0, 0]) - before == 2 * len(touched)  # variables
    together = fast(url, packed=True)
    together[0]
    before = int(together.counts[0, 0])
    together.__getitems__(indices)
    assert int(together.counts[0, 0]) - before == len(touched)


def test_a_cache_reads_nothing_again(url):
    ours = fast(url, cache_mb=16.0)
    every = list(range(len(ours)))
    ours.__getitems__(every)
    before = int(ours.counts[0, 0])
    ours.__getitems__(every)
    assert int(ours.counts[0, 0]) == before


class Diary:
    """A dataset that writes down what it hears."""

    def __init__(self, batches_ahead: int) -> None:
        self.batches_ahead = batches_ahead
        self.heard: list = []

    def prefetch(self, batch):
        self.heard.append(batch)

    def forget(self):
        self.heard.append("forget")


@pytest.mark.parametrize("ahead", [1, 3, 20])
def test_batches_are_announced_ahead(ahead):
    batches = [[n, n + 1] for n in range(0, 20, 2)]
    diary = Diary(ahead)
    for number, batch in enumerate(LookAhead(batches, diary)):
        assert batch == batches[number]
        assert diary.heard == ["forget", *batches[: number + 1 + ahead]]
    assert number == 9
    assert len(LookAhead(batches, diary)) == 10


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loaders_yield_the_same_over_epochs(url, num_workers):
    """With look-ahead and without, in a worker and here; the last epoch is left in the middle."""
    if num_workers:
        start_forkserver()

    def epochs(make, **settings) -> list:
        found = []
        with make_loaders(make, batch_size=7, num_workers=num_workers, seed=3) as loaders:
            for epoch in range(3):
                loaders.sampler.set_epoch(epoch)
                for number, (x, index) in enumerate(loaders.train):
                    found.append((x.nan_to_num(1), index.tolist()))
                    if epoch == 1 and number == 2:
                        break
            found += [(x.nan_to_num(1), index.tolist()) for x, index in loaders.val]
        return found

    ours = epochs(lambda split: fast(url, split, packed=True))
    theirs = epochs(lambda split: dataset(url, split)) if not num_workers else None
    if theirs is None:
        theirs = epochs(lambda split: fast(url, split, batches_ahead=0))
    assert len(ours) == len(theirs)
    for (x, index), (expected, numbers) in zip(ours, theirs, strict=True):
        assert index == numbers
        assert x.equal(expected)


def test_memory_stays_bounded(tmp_path):
    """Over a thousand batches: (batches_ahead + 1) batches, the cache, the chunks in flight."""
    place = str(tmp_path / "large")
    fields = small_fields(height=40, width=80)
    small_store(place, fields, chunk=(6, 20, 40))
    ours = fast(place, window=(3, 20, 40), cache_mb=2.0, concurrency=8)
    generator = np.random.default_rng(0)
    batches = [generator.integers(0, len(ours), 16).tolist() for _ in range(1000)]
    batch_bytes = 16 * 2 * 3 * 20 * 40 * 4
    bound = 5 * batch_bytes + 2e6 + 8 * 6 * 20 * 40 * 4
    process, sizes = psutil.Process(), []
    for batch in LookAhead(batches, ours):
        ours.__getitems__(batch)
        sizes.append(process.memory_info().rss)
    assert 1000 * batch_bytes > 10 * bound  # what a leak would add
    assert max(sizes) - sizes[50] < bound + 30e6  # what the allocator keeps
    assert not ours._pending


def test_fork_is_an_error_and_no_hang(url):
    loader = DataLoader(fast(url), 4, num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    with pytest.raises(CloudError, match="fork hangs once a store is open; allowed: forkserver, s"):
        next(batches)
    end_forked_workers(batches)


def test_each_process_opens_its_own(url):
    ours = fast(url)
    ours.prefetch([1, 2])
    again = pickle.loads(pickle.dumps(ours))
    assert len(pickle.dumps(ours)) < 100_000
    assert not again._pending
    assert_same_samples(again, ours, range(4))
    start_forkserver()
    loader = DataLoader(
        ours,
        4,
        num_workers=1,
        multiprocessing_context="forkserver",
        worker_init_fn=worker_init_fn,
    )
    batches = iter(loader)
    x, _ = next(batches)
    assert x[3].nan_to_num(1).equal(ours[3][0].nan_to_num(1))
    batches._shutdown_workers()
    assert int(ours.counts[1, 0]) > 0  # what the worker has asked for


REFUSED = {
    "ahead": ({"batches_ahead": -1}, "batches_ahead -1, .*; allowed: from 0, from 1, from 0"),
    "concurrency": ({"concurrency": 0}, "concurrency 0, .* allowed"),
    "window": ({"window": (3, 11, 6)}, r"window: \[3, 11, 6\] .* allowed: up to \[12, 10, 20\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_make_no_sense(url, case):
    settings, message = REFUSED[case]
    with pytest.raises(CloudError if case != "window" else Exception, match=message) as caught:
        fast(url, **settings)
    assert "\n" not in str(caught.value)


def test_packed_integers_are_not_read_as_they_are(url, tmp_path):
    fields = small_fields()
    encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 290.0, "_FillValue": -9999}
    place = str(tmp_path / "integers")
    fields.to_zarr(
        place, zarr_format=3, consolidated=False, encoding=dict.fromkeys(fields.data_vars, encoding)
    )
    store = open_store(place, writable=True)
    found = compute_statistics(open_fields_lazily(store), SMALL["train_months"], CHUNK)
    write_statistics(store, found)
    with pytest.raises(CloudError, match=r"a is packed into int16 with a scale .* pack_store.py"):
        fast(place)
    pack(place, CHUNK)  # unpacks them
    assert_same_samples(fast(place, packed=True), dataset(place), range(8))


def test_no_packed_copy_or_half_of_one(url, tmp_path, monkeypatch):
    place = str(tmp_path / "store")
    small_store(place, chunk=CHUNK)
    with pytest.raises(CloudError, match=r"no array packed/fields here; pack_store.py makes"):
        fast(place, packed=True)
    stack, calls = np.stack, []

    def killed(parts):
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return stack(parts)

    monkeypatch.setattr(pack_module.np, "stack", killed)
    with pytest.raises(KeyboardInterrupt):
        pack(place, CHUNK, threads=1)
    monkeypatch.undo()
    with pytest.raises(CloudError, match=r"packed copy is not finished; run pack_store.py again"):
        fast(place, packed=True)
    with pytest.raises(CloudError, match="there is another packed copy; --overwrite"):
        pack(place, (5, 4, 4))
    there = len(list((tmp_path / "store" / PACKED / "c").rglob("*")))
    assert there > 5
    pack(place, CHUNK)
    assert_same_samples(fast(place, packed=True), dataset(place))
    pack(place, (5, 4, 4), overwrite=True)
    assert zarr.open_array(place, path=PACKED).chunks == (2, 5, 4, 4)
    assert_same_samples(fast(place, packed=True), dataset(place))


def test_packed_copy_without_a_variable(url, tmp_path):
    place = str(tmp_path / "store")
    small_store(place, chunk=CHUNK)
    pack(place, CHUNK, ["a"])
    assert_same_samples(fast(place, packed=True, variables=["a"]), dataset(place, variables=["a"]))
    with pytest.raises(CloudError, match=r"its packed copy has no b; run pack_store.py again"):
        fast(place, packed=True)


def test_chapter_2_reads_a_store_with_a_packed_copy(url):
    """It lies in a group of its own."""
    assert set(xr.open_zarr(url, consolidated=False).data_vars) == {"a", "b"}
    assert dataset(url).variables == ["a", "b"]


@pytest.mark.parametrize(("patience", "number"), [(0.05, 1), (0.1, 1), (0.35, 2), (60.0, 16)])
def test_retries_fit_into_the_patience(patience, number):
    pauses = [min(0.1 * 2**n, 5.0) for n in range(number)]
    assert number_of_retries(patience) == number
    assert sum(pauses) <= max(patience, 0.1)
