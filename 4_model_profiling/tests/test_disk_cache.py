"""The cache on disk: the same samples, bounded, kept, shared, and nothing in it is trusted."""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import pytest
import torch
from src.config import CHAPTER
from src.data import disk_cache
from src.data.cloud_errors import CloudError
from src.data.disk_cache import CacheFolder
from src.data.fast_dataset import FastDataset

from tests.cloud_stores import SMALL, assert_same_samples, dataset, small_fields
from tests.fast_stores import CHUNK
from tests.fast_stores import url as url  # a fixture


def cached(url: str, folder: Path, **settings) -> FastDataset:
    return FastDataset("train", url=url, disk_cache=str(folder), **(SMALL | settings))


def objects(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "/c/" in str(path) and path.is_file())


def lose(url: str, place: Path) -> str:
    """A store whose chunks are gone, under the same name: whoever reads it has them in a cache."""
    shutil.copytree(url, place)
    return str(place)


@pytest.mark.parametrize("packed", [False, True])
def test_the_same_samples_and_no_request_for_what_is_there(url, tmp_path, packed):
    store, folder = lose(url, tmp_path / "store"), tmp_path / "cache"
    ours = cached(store, folder, packed=packed)
    assert_same_samples(ours, dataset(url))
    for chunks in Path(store).rglob("c"):
        if chunks.parent.name in ("a", "b", "fields"):
            shutil.rmtree(chunks)
    again = cached(store, folder, packed=packed)  # another run
    assert_same_samples(again, dataset(url))
    with pytest.raises(CloudError, match=r"chunk .* is missing"):
        cached(store, tmp_path / "empty", packed=packed)[0]


def test_requests_are_counted_once(url, tmp_path):
    """What comes from the cache is no request; each object is asked for once in all."""
    ours = cached(url, tmp_path / "cache")
    asked, every = [], list(range(len(ours)))
    for number, store in enumerate(ours.source.stores):
        ours.source.stores[number] = Counting(store, asked)
    for first in range(0, 40, 8):
        ours.prefetch(every[first : first + 8])
    for first in range(0, 40, 8):
        ours.__getitems__(every[first : first + 8])
    assert asked
    assert len(asked) == len(set(asked))


class Counting:
    """A store that writes down what it is asked for."""

    def __init__(self, store, asked: list) -> None:
        self.store, self.asked = store, asked

    def read(self, key):
        self.asked.append((id(self.store), key))
        return self.store.read(key)


@pytest.mark.parametrize("damage", ["bit", "short", "empty", "gone"])
def test_damage_is_found_and_mended(url, tmp_path, damage):
    ours = cached(url, tmp_path / "cache")
    assert_same_samples(ours, dataset(url))
    for file in objects(tmp_path / "cache")[::3]:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        new = {"bit": bytes(content), "short": bytes(content[:20]), "empty": b""}
        file.write_bytes(new[damage]) if damage in new else file.unlink()
    assert_same_samples(cached(url, tmp_path / "cache"), dataset(url))
    for file in objects(tmp_path / "cache"):
        content = file.read_bytes()
        assert disk_cache.checksum(content[:-4]) == content[-4:]


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    folder = CacheFolder(tmp_path, limit=10_000)
    for number in range(8):
        folder.write(tmp_path / str(number), bytes(1000))
        os.utime(tmp_path / str(number), (number, number))
    os.utime(tmp_path / "0")
    folder.write(tmp_path / "8", bytes(1000))
    folder.write(tmp_path / "9", bytes(1000))
    left = {path.name for path in tmp_path.iterdir()} - {"lock"}
    assert left == set("023456789")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("new-")]


def test_what_others_are_writing_is_left_alone(tmp_path):
    """Unless they died: then it would stay for ever."""
    for name, age in (("new-1", 0.0), ("new-2", 2 * disk_cache.ABANDONED)):
        (tmp_path / name).write_bytes(bytes(900))
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    CacheFolder(tmp_path, limit=1000).evict()
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "new-1"}


WRITER = """
import sys
from pathlib import Path
from src.data.disk_cache import CacheFolder
place = Path(sys.argv[1])
folder = CacheFolder(place, limit=1e6)
for number in range(300):
    folder.write(place / sys.argv[2] / str(number), bytes(20_000))
"""


def size_of(folder: Path) -> int:
    """Bytes in a cache, while nobody deletes."""
    with filelock.FileLock(folder / "lock"):
        return sum(path.stat().st_size for path in folder.rglob("[0-9]*") if path.is_file())


def test_it_stays_below_its_limit(tmp_path):
    """Two processes write 12 MB into a cache of 1 MB."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name], cwd=CHAPTER) for name in ("1", "2")]
    highest = 0
    while any(writer.poll() is None for writer in writers):
        highest = max(highest, size_of(tmp_path))
    assert [writer.returncode for writer in writers] == [0, 0]
    assert 0.5e6 < highest <= 1.1e6  # files come and go while they are added up


def test_a_cache_that_is_too_small_changes_nothing(url, tmp_path):
    """Everything is evicted before it can be used, and read from the store."""
    ours = cached(url, tmp_path / "cache", disk_cache_gb=2e-6)
    ours.prefetch(range(8))
    assert_same_samples(ours, dataset(url))


def test_many_threads_and_processes_share_it(url, tmp_path):
    """As the ranks of a machine do: no half file is ever read, and none stays."""
    expected = [sample.nan_to_num(1) for sample, _ in dataset(url).__getitems__(range(30))]
    failures: list[BaseException] = []
    # Opened here: threads that open stores switch off each other's filters of warnings.
    limited = [cached(url, tmp_path / "cache", disk_cache_gb=2e-5) for _ in range(12)]

    def rank(own: list[FastDataset]) -> None:
        try:
            for ours in own:
                found = ours.__getitems__(range(30))
                for (x, _), right in zip(found, expected, strict=True):
                    assert torch.equal(x.nan_to_num(1), right)
        except BaseException as error:
            failures.append(error)

    ranks = [threading.Thread(target=rank, args=(limited[n::4],)) for n in range(4)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert not failures
    assert not list((tmp_path / "cache").glob("new-*"))


def test_a_full_disk_costs_the_cache_and_no_sample(url, tmp_path, monkeypatch):
    ours = cached(url, tmp_path / "cache")
    real = disk_cache.NamedTemporaryFile

    class Full:
        def __init__(self, file) -> None:
            self.file, self.name = file, file.name

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            self.file.close()

        def write(self, content):
            self.file.write(content[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_cache, "NamedTemporaryFile", lambda **s: Full(real(**s)))
    with pytest.warns(UserWarning, match="No space left on device; going on without the cache"):
        assert_same_samples(ours, dataset(url), range(5))
    assert not objects(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("new-*"))


def test_bad_settings(url, tmp_path):
    with pytest.raises(CloudError, match=r"disk_cache_gb 0; allowed: .*above 0"):
        cached(url, tmp_path, disk_cache_gb=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(CloudError, match=r"disk_cache: .*; allowed: a writable folder"):
        cached(url, tmp_path / "file")


def test_zarr_v2_is_refused(url, tmp_path):
    fields = small_fields()
    encoding = {name: {"chunks": CHUNK} for name in fields.data_vars}
    fields.to_zarr(str(tmp_path / "v2"), zarr_format=2, consolidated=False, encoding=encoding)
    with pytest.raises(CloudError, match="disk_cache: allowed: stores in Zarr v3 with the usual"):
        cached(str(tmp_path / "v2"), tmp_path / "cache", statistics_url=url)
