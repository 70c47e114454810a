"""The fast reader in a loader: batches ahead, bounded memory, workers that read for themselves."""

import pickle

import numpy as np
import psutil
import pytest
from src.data.loader_settings import start_forkserver
from src.data.loaders import make_loaders
from src.data.look_ahead import LookAhead
from src.reproducibility import worker_init_fn
from torch.utils.data import DataLoader

from tests.cloud_stores import (
    assert_fork_is_refused,
    assert_same_samples,
    dataset,
    small_fields,
    small_store,
)
from tests.fast_stores import fast
from tests.fast_stores import url as url  # a fixture


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
    assert_fork_is_refused(fast(url))


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
