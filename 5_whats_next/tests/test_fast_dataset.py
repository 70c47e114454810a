"""The fast reader's samples: chapter 2's, to the bit, with fewer requests and bounded memory."""

import shutil

import pytest
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import open_fields_lazily
from src.data.cloud_statistics import compute_statistics, write_statistics
from src.data.cloud_store import open_store
from src.data.fast_store import number_of_retries

from tests.cloud_stores import (
    SMALL,
    assert_same_samples,
    dataset,
    small_fields,
    small_store,
)
from tests.fast_stores import CHUNK, fast
from tests.fast_stores import url as url  # a fixture


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


@pytest.mark.slow(copies=True)
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


@pytest.mark.parametrize(("patience", "number"), [(0.05, 1), (0.1, 1), (0.35, 2), (60.0, 16)])
def test_retries_fit_into_the_patience(patience, number):
    pauses = [min(0.1 * 2**n, 5.0) for n in range(number)]
    assert number_of_retries(patience) == number
    assert sum(pauses) <= max(patience, 0.1)


def test_a_batch_that_fails_disturbs_no_other(url, tmp_path):
    """It is read ahead, and told when it is asked for."""
    place = shutil.copytree(url, tmp_path / "store")
    ours = fast(str(place))
    first, last = 0, len(ours) - 1
    needed, lost = (ours.source.objects([ours.slices(index)]) for index in (first, last))
    for number, key in lost - needed:
        (place / ours.variables[number] / key).unlink()
    ours.prefetch([last])
    assert_same_samples(ours, dataset(url), [first])
    ours.prefetch([first])
    with pytest.raises(CloudError, match=r"chunk .* is missing"):
        ours[last]
    assert not ours._pending  # nobody will ask for what was to come
    assert_same_samples(ours, dataset(url), [first])
