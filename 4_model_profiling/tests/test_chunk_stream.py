"""The stream: the same samples in another order, each chunk read once, the same for any ranks."""

import pickle
from collections.abc import Iterable
from itertools import chain

import numpy as np
import pytest
import torch
from src.data.chunk_stream import ChunkStream
from src.data.cloud_errors import CloudError
from src.data.lightning_sampler import TrainBatches
from src.data.loaders import make_loaders
from src.data.look_ahead import LookAhead
from src.data.orders import order_of
from src.data.pack import pack
from src.model.masking import random_keys

from tests.cloud_stores import SMALL, assert_same_samples, dataset, small_store

ONE_MONTH = SMALL | {"window": (1, 4, 6), "train_stride": (1, 2, 3)}


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    place = str(tmp_path_factory.mktemp("store") / "small.zarr")
    small_store(place, chunk=(1, 4, 7))
    pack(place, (1, 4, 7))
    return place


def stream(url: str, split: str = "train", **settings) -> ChunkStream:
    return ChunkStream(split, url=url, **(ONE_MONTH | settings))


def blocks_of(ours: ChunkStream, indices: Iterable[int]) -> list[tuple[int, int, int]]:
    """The block of each window."""
    return [ours.block_at(step) for step in ours.places_of(list(indices))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "wrap", "block"),
    [
        ("train", True, (1, 0, 0)),
        ("train", True, (2, 5, 7)),
        ("train", True, (1, 1, 1)),
        ("train", False, (0, 0, 0)),
        ("train", False, (1, 1, 1)),
        ("val", True, (2, 5, 7)),
        ("val", False, (1, 0, 0)),
    ],
)
def test_samples_are_chapter_2s(url, split, wrap, block):
    """Whatever the blocks, across the edge of the globe too."""
    settings = {"wrap_longitude": wrap, "window": (2, 4, 6)}
    theirs = dataset(url, split, **(ONE_MONTH | settings))
    ours = stream(url, split, block=block, **settings)
    for number in range(len(ours)):
        x, index = ours[number]
        assert index == number
        assert torch.equal(x.nan_to_num(1), theirs[number][0].nan_to_num(1))


@pytest.mark.parametrize("streams", [1, 3, 4])
@pytest.mark.parametrize("repeats", [1, 2])
def test_an_epoch_is_every_window_once(url, streams, repeats):
    ours = stream(url, streams=streams, buffer=2, repeat_augmentation=repeats)
    orders = [ours.epoch_order(seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    for order in orders:
        assert sorted(order) == list(range(len(ours)))
    assert orders[0] == orders[3]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("streams", "buffer", "ahead"), [(1, 1, 4), (4, 2, 4), (2, 6, 4), (1, 1, 16), (4, 1, 40)]
)
def test_each_chunk_is_read_once(url, streams, buffer, ahead, packed):
    """Over a whole epoch, if the windows of a block lie in whole chunks; far ahead as well."""
    settings = {"streams": streams, "buffer": buffer, "batches_ahead": ahead, "packed": packed}
    ours = stream(url, block=(1, 0, 0), **settings)
    ours[0]
    ours._blocks.clear()
    before, order = int(ours.counts[0, 0]), ours.epoch_order(0, 0)
    most = 0
    for batch in LookAhead([order[n : n + 8] for n in range(0, len(order), 8)], ours):
        ours.__getitems__(batch)
        most = max(most, len(ours._blocks))
    months = SMALL["train_months"][1] - SMALL["train_months"][0]
    chunks = months * 3 * 3 * (1 if packed else 2)
    assert int(ours.counts[0, 0]) - before == chunks
    assert most <= ours.capacity(8)


def test_blocks_that_live_at_the_same_time(url):
    """Never more than the formula of the memory says, and no fewer than a shuffle buffer has."""
    for buffer in (1, 3):
        ours = stream(url, streams=2, buffer=buffer)
        blocks = blocks_of(ours, ours.epoch_order(0, 0))
        first = {block: number for number, block in reversed(list(enumerate(blocks)))}
        last = {block: number for number, block in enumerate(blocks)}
        alive = [sum(first[b] <= number <= last[b] for b in first) for number in range(len(blocks))]
        assert buffer < max(alive) <= 2 * (buffer + 1)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_the_batches_and_no_block(url, world_size):
    """Together they train on the batches of one process; each reads blocks of its own."""
    ours = stream(url, streams=4, buffer=2)
    alone = list(TrainBatches(len(ours), 0, 8, 0, 1, lambda: 0, order_of(ours)))
    parts = [
        list(TrainBatches(len(ours), 0, 8, rank, world_size, lambda: 0, order_of(ours)))
        for rank in range(world_size)
    ]
    for batch, *shares in zip(alone, *parts, strict=True):
        assert sorted(batch) == sorted(chain(*shares))
    # Without the end of the epoch, where the longer streams are left over.
    own = [set(blocks_of(ours, chain(*part[: len(part) // 2]))) for part in parts]
    for number, blocks in enumerate(own):
        assert not any(blocks & others for others in own[number + 1 :])


def test_more_blocks_are_closer_to_random(url):
    """A batch then holds windows of more months."""

    def months_in_a_batch(buffer: int) -> float:
        ours = stream(url, streams=1, buffer=buffer)
        order = ours.epoch_order(0, 0)
        middle = len(order) // 2
        batches = [order[n : n + 8] for n in range(middle - 40, middle + 40, 8)]
        return float(np.mean([len(set(blocks_of(ours, batch))) for batch in batches]))

    assert months_in_a_batch(1) < months_in_a_batch(3) < months_in_a_batch(12)


def test_repeats_have_other_masks(url):
    """The same values under another number, and so under another mask; not in validation."""
    ours = stream(url, repeat_augmentation=3, streams=1)
    single = len(ours) // 3
    first = ours.epoch_order(0, 0)[:3]
    assert [index % single for index in first] == [first[0] % single] * 3
    values = [x.nan_to_num(1) for x, _ in ours.__getitems__(first)]
    assert ours.slices(first[1]) == ours.slices(first[0])
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    keys = random_keys(0, 0, torch.tensor(first), num_tokens=16).argsort(dim=1)
    assert not torch.equal(keys[0], keys[1])
    assert len(stream(url, "val", repeat_augmentation=3)) == len(stream(url, "val"))


def test_loaders_use_the_order_and_start_anywhere(url):
    """Raw PyTorch's loader; a resumed epoch goes on where it stopped."""
    settings = {"batch_size": 8, "seed": 3}
    with make_loaders(lambda split: stream(url, split), **settings) as loaders:
        loaders.sampler.set_epoch(1)
        found = [index.tolist() for _, index in loaders.train]
        order = loaders.train_set.epoch_order(3, 1)
        assert found == [order[n : n + 8] for n in range(0, len(order) - 7, 8)]
        loaders.sampler.set_epoch(1, start=24)
        resumed = [(x.nan_to_num(1), index.tolist()) for x, index in loaders.train]
    assert [index for _, index in resumed] == found[3:]
    theirs = dataset(url, **ONE_MONTH)
    for x, indices in resumed:
        expected = torch.stack([theirs[index][0].nan_to_num(1) for index in indices])
        assert torch.equal(x, expected)


def test_another_process_reads_for_itself(url):
    ours = stream(url)
    ours[0]
    again = pickle.loads(pickle.dumps(ours))
    assert not again._blocks
    assert_same_samples(again, dataset(url, **ONE_MONTH), range(4))


@pytest.mark.slow(copies=True)
def test_with_a_cache_on_disk(url, tmp_path):
    ours = stream(url, disk_cache=str(tmp_path / "cache"))
    assert_same_samples(ours, dataset(url, **ONE_MONTH))
    before = int(ours.counts[0, 0])
    again = stream(url, disk_cache=str(tmp_path / "cache"))
    assert_same_samples(again, dataset(url, **ONE_MONTH))
    assert int(again.counts[0, 0]) - before <= 0


@pytest.mark.parametrize(
    "settings", [{"block": (-1, 0, 0)}, {"buffer": 0}, {"streams": 0}, {"repeat_augmentation": 0}]
)
def test_settings_that_make_no_sense(url, settings):
    with pytest.raises(CloudError, match=f"{next(iter(settings))} .*allowed: from 0, and from 1"):
        stream(url, **settings)
