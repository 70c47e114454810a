"""A store is opened in a few round trips, whatever becomes of what was asked for beforehand."""

import asyncio

import numpy as np
import pytest
import src.data.usecase_cloud_dataset as chapter_2
from src.data.cloud_errors import CloudError
from src.data.cloud_store import CheckedStore
from src.data.fast_dataset import FastDataset
from src.data.fast_store import count_requests
from src.data.opening import OpeningStore, expected_keys
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from tests.cloud_stores import SMALL, assert_same_samples, dataset
from tests.fast_stores import fast
from tests.fast_stores import url as url  # a fixture

ROUND = 0.05  # seconds; requests that come in the meantime wait for the same answer


class Rounds(WrapperStore):
    """A store far away, that counts how often somebody waited for it."""

    def __init__(self, store) -> None:
        super().__init__(store)
        self.rounds, self.requests = 0, 0
        self._coming: asyncio.Task | None = None

    async def wait(self) -> None:
        self.requests += 1
        if not self._coming or self._coming.done():
            self._coming = asyncio.create_task(asyncio.sleep(ROUND))
            self.rounds += 1
        await self._coming

    async def get(self, key, prototype, byte_range=None):
        await self.wait()
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix):
        await self.wait()
        async for name in super().list_dir(prefix):
            yield name


@pytest.fixture
def far_away(monkeypatch) -> list[Rounds]:
    """The stores that were opened, each with its rounds."""
    opened = []

    def open_far_away(url, anonymous=False, patience=60.0, counts=None, writable=False):
        opened.append(Rounds(LocalStore(url, read_only=True)))
        return CheckedStore(opened[-1], url, patience, counts, anonymous=anonymous)

    monkeypatch.setattr(chapter_2, "open_store", open_far_away)
    return opened


@pytest.fixture
def own_counts() -> None:
    """Requests of other drivers, which earlier tests of this process have made, do not count."""
    count_requests(np.zeros(3, dtype=np.int64), "file")


@pytest.mark.usefixtures("own_counts")
@pytest.mark.parametrize("packed", [False, True])
def test_opening_takes_few_rounds(url, far_away, packed):
    """What is expected, then the metadata of the variables; on a busy machine a round may split."""
    ours = fast(url, packed=packed)
    assert far_away[0].rounds <= 5
    assert len(far_away) == 1
    theirs = dataset(url)
    assert far_away[1].rounds >= 2 * far_away[0].rounds  # one after the other, as ever
    assert_same_samples(ours, theirs, range(2))
    assert ours.counts[0, 0] >= far_away[0].requests  # and TensorStore's


def test_statistics_from_elsewhere(url, far_away, tmp_path):
    """Two stores, both in few rounds."""
    elsewhere = tmp_path / "statistics.zarr"
    elsewhere.mkdir()
    (tmp_path / "data.zarr").symlink_to(url)
    (elsewhere / "zarr.json").write_bytes((tmp_path / "data.zarr" / "zarr.json").read_bytes())
    (elsewhere / "statistics").symlink_to(tmp_path / "data.zarr" / "statistics")
    ours = fast(url, statistics_url=str(elsewhere))
    assert len(far_away) == 2
    assert sum(store.rounds for store in far_away) <= 8
    assert_same_samples(ours, dataset(url), range(2))


def test_a_store_that_is_laid_out_in_another_way(tmp_path):
    """Nothing of what is expected is there; the message is that of every reader."""
    with pytest.raises(CloudError, match="there is no Zarr store here"):
        FastDataset("train", url=str(tmp_path / "nothing"), **SMALL)


class Scripted(MemoryStore):
    """Answers each key as its list says: an exception, or nothing; "hang" never answers."""

    def __init__(self, answers: dict[str, list]) -> None:
        super().__init__()
        self.answers, self.asked = answers, []
        self.cancelled: list[str] = []

    async def get(self, key, prototype, byte_range=None):
        self.asked.append(key)
        answer = self.answers[key].pop(0)
        if answer == "hang":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(key)
                raise
        if isinstance(answer, Exception):
            raise answer
        return prototype.buffer.from_bytes(answer)


def read(store: CheckedStore, key: str) -> bytes:
    found = sync(store.get(key, default_buffer_prototype()))
    assert found is not None
    return found.to_bytes()


def test_what_fails_beforehand_is_asked_for_again(capfd):
    """With the patience of the one who needs it, and what nobody needs says nothing."""
    fault = PermissionError("no right")
    answers = {"a": [b"1"], "b": [fault, b"2", b"3", b"4"], "c": [fault], "d": ["hang"]}
    scripted = Scripted(answers)
    store = OpeningStore(CheckedStore(scripted), ["a", "b", "c", "d"])
    assert read(store, "a") == b"1"
    assert scripted.asked == ["a", "b", "c", "d"]
    assert read(store, "a") == b"1"  # kept
    assert read(store, "b") == b"2"
    assert scripted.asked == ["a", "b", "c", "d", "b"]
    store.finish()
    assert scripted.cancelled == ["d"]
    assert [read(store, "b"), read(store, "b")] == [b"3", b"4"]  # no longer kept
    assert "exception" not in capfd.readouterr().err


def test_what_is_needed_and_fails_is_an_error():
    store = OpeningStore(CheckedStore(Scripted({"a": [PermissionError("no right")] * 2})), [])
    for _ in range(2):
        with pytest.raises(CloudError, match="access denied"):
            read(store, "a")
    store.finish()


def test_only_what_the_store_has_is_expected():
    assert not [key for key in expected_keys(["sst"], None) if "statistics" in key]
    assert not [key for key in expected_keys([], (0, 12), []) if "statistics/0-12" not in key]
