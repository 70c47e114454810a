"""Faults of the store under the fast reader: retried, or one line; and the memory that it takes."""

import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock
from unittest.mock import patch

import build_store
import dask.array
import google_crc32c
import numpy as np
import pytest
import zarr
from build_store import pack
from numcodecs import Zstd
from zarr.core.sync import sync
from zarr.storage import LocalStore

from src.callbacks.loader_report import memory_needed
from src.data.build import add_statistics, build
from src.data.chunk_stream import ChunkStream
from src.data.cube import cube_fields
from src.data.fast_dataset import FastDataset
from src.data.loaders import Loaders
from src.data.s3_server import connect
from src.data.store import open_fields, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.config import CHAPTER
from src.run.errors import UserError
from tests.fault_proxy import Fault, FaultyProxy
from tests.runs import call
from tests.stores import SETTINGS, URL, build_small

STREAM = URL.replace("small", "stream")


@pytest.fixture
def proxy(monkeypatch):
    build_small()
    build_small(STREAM, packed_months=2)
    with FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        yield proxy


@pytest.mark.parametrize("kind", ["cut", "stall"])
def test_what_may_pass_is_tried_again(proxy, kind):
    """Broken by: no TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS (a silent request waits for ever)."""
    expected = FastDataset("train", **SETTINGS)[0][0]
    # The statistics are read by chapter 2's reader.
    dataset = FastDataset("train", **SETTINGS)
    proxy.faults = [Fault(kind, times=2, path="/c/")]
    assert dataset[0][0].nan_to_num(-1).equal(expected.nan_to_num(-1))
    assert proxy.faults[0].times == 0


@pytest.mark.parametrize("kind", ["stall", "503"])
def test_a_failing_endpoint_ends_within_its_patience(proxy, kind):
    """Broken by: no timeout in FastDataset.result."""
    dataset = FastDataset("train", **SETTINGS)
    dataset.patience = 2  # from here on: on a busy machine opening may take longer
    proxy.faults, start = [Fault(kind, math.inf, "/c/")], time.monotonic()
    with pytest.raises(
        UserError, match=r"^s3://.*: a window was not complete in 2 s: if"
    ):
        dataset[0]
    assert time.monotonic() - start < 10


def test_a_lost_chunk_is_named():
    """Never read as land. Broken by: no fill_missing_data_reads in open_arrays."""
    url = URL.replace("small", "lost")
    build_small(url)
    sync(open_store(url, read_only=False).delete("salinity/c/0/0/0"))
    with pytest.raises(UserError, match=r"^s3://embedded/lost-.*salinity/c/0/0/0"):
        FastDataset("train", **(SETTINGS | {"url": url}))[0]


def flip_a_bit(path: Path) -> None:
    whole = path.read_bytes()
    values = changed = Zstd().decode(whole)
    # Some bits mean nothing: which one of two equal texts is copied, or some of the first bytes.
    while changed == values:
        content = bytearray(whole)
        bit = random.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            changed = Zstd().decode(bytes(content))
        except RuntimeError:
            return


@pytest.mark.parametrize("packed", [False, True])
def test_a_flipped_bit_is_named(tmp_path, packed):
    """Broken by: no with_checksums in build or in pack."""
    build_small(str(tmp_path))
    array = tmp_path / ("packed/fields" if packed else "salinity")
    chunks = [path for path in array.glob("c/**/*") if path.is_file()]
    if packed:  # the months between the two periods are in no window
        chunks = [path for path in chunks if int(path.parts[-3]) not in range(16, 20)]
    for chunk in random.sample(chunks, 8):
        whole = chunk.read_bytes()
        flip_a_bit(chunk)
        settings = SETTINGS | {"url": str(tmp_path), "window": (4, 18, 36)}
        settings |= {"train_stride": (4, 18, 36), "val_stride": (4, 18, 36)}
        with pytest.raises(UserError, match=f"{chunk.relative_to(tmp_path)}"):
            read_all(settings | {"packed": packed})
        chunk.write_bytes(whole)


def read_all(settings: dict) -> None:
    for split in ("train", "val"):
        dataset = FastDataset(split, **settings)
        dataset.__getitems__(range(len(dataset)))


def test_a_packed_copy_has_to_be_whole_and_can_be_mended(monkeypatch, tmp_path, capsys):
    """Broken by: consolidated metadata before the values: it would say at once that it is finished.

    Or no look at what is there, in pack, and no min(); no pack in mend; dask arrays of more than
    some steps, which take gigabytes.
    """
    url = str(tmp_path)
    cube = ["cube", "--months=36", "--height=18", "--width=36", "--chunk=[15,9,18]"]
    call(monkeypatch, *cube, f"--url={url}", script=build_store)
    settings = {"url": url, "packed": True, "window": (4, 8, 8)}
    settings |= {"train_period": ("1900-01", "1902-04")}
    settings |= {"val_period": ("1902-09", "1902-12")}
    with pytest.raises(UserError, match="packed: there is no Zarr store"):
        FastDataset("train", **settings)
    write = LocalStore.set

    async def write_until_killed(store, key, value):
        if key.endswith("c/0/5/0/0"):
            raise InterruptedError
        await write(store, key, value)

    zarr.create_group(tmp_path / "packed", attributes={"title": "theirs"})
    with pytest.raises(UserError, match="would be lost"):
        pack(url, (5, 9, 9))
    assert zarr.open_group(tmp_path / "packed").attrs["title"] == "theirs"
    shutil.rmtree(tmp_path / "packed")
    with (
        patch.object(LocalStore, "set", write_until_killed),
        pytest.raises(InterruptedError),
    ):
        pack(url, (5, 9, 9))
    with pytest.raises(UserError, match="packed is not finished"):
        FastDataset("train", **settings)
    store = dask.array.Array.store
    with patch.object(
        dask.array.Array, "store", autospec=True, side_effect=store
    ) as log:
        pack(url, (5, 9, 9))
    # Twice the months of a chunk of the store, and the last six.
    parts = [call.args[0].npartitions for call in log.call_args_list]
    assert parts == [24, 24, 16]

    chunk = tmp_path / "packed" / "fields" / "c" / "0" / "5" / "1" / "1"
    whole = chunk.read_bytes()
    chunk.unlink()
    # Also where another program has made the store, and left no command.
    zarr.open_group(url).attrs["command"] = None
    call(monkeypatch, "check", f"--url={url}", "--repair=true", script=build_store)
    output = capsys.readouterr().out
    assert "damaged or missing: packed/fields/c/0/5/1/1" in output
    assert "all chunks are there" in output
    assert chunk.read_bytes() == whole
    FastDataset("train", **settings)[0]

    metadata = tmp_path / "packed" / "zarr.json"
    metadata.write_text(metadata.read_text().replace("1902-12", "1802-12"))
    with pytest.raises(UserError, match="packed: a copy of another grid"):
        FastDataset("train", **settings)
    metadata.unlink()
    with pytest.raises(UserError, match="packed: its chunk is not known"):
        call(monkeypatch, "check", f"--url={url}", "--repair=true", script=build_store)


def test_a_lost_or_cut_shard_is_named(tmp_path):
    """Both readers, and a chunk that its shard has left out; chunks beyond the edge are none.

    Broken by: no fill_missing_data_reads; no check_shard in CheckedStore.get. If asked for, the
    chunk is land. Broken by: has_land = False; no look at `land` in CheckedStore.get.
    """
    url = str(tmp_path)
    fields = cube_fields((24, 20, 36), (4, 8, 12))
    build(url, fields, (4, 8, 12), ("1900-01", "1901-04"), shard=(8, 16, 24))
    settings = SETTINGS | {"url": url, "window": (4, 18, 36)}
    settings |= {"train_stride": (4, 18, 36)}
    readers = (CloudDataset, FastDataset)
    slow, fast = (reader("train", **settings)[0][0] for reader in readers)
    np.testing.assert_array_equal(slow, fast)
    land = fast.isnan().sum()

    with pytest.raises(UserError, match="has shards: use FastDataset"):
        ChunkStream("train", **settings)[0]

    shard = tmp_path / "salinity" / "c" / "0" / "1" / "1"
    whole = shard.read_bytes()
    for damaged in (None, whole[:-100], whole[100:], without_first_chunk(whole)):
        shard.unlink(missing_ok=True)
        if damaged:
            shard.write_bytes(damaged)
        for reader in readers:
            with pytest.raises(UserError, match="salinity/c/0/1/1"):
                reader("train", **settings)[0]
    settings |= {"missing_chunks": "land"}
    slow, fast = (reader("train", **settings)[0][0] for reader in readers)
    np.testing.assert_array_equal(slow, fast)
    assert fast.isnan().sum() > land

    # Zarr reads a whole shard in one go, without asking for its index.
    fields = open_fields(open_store(url))
    with pytest.raises(UserError, match="a chunk in salinity/c/0/1/1 is missing"):
        fields["salinity"][:8, 16:, 24:].load()
    metadata = tmp_path / "salinity" / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"end"', '"start"'))
    with pytest.raises(UserError, match="salinity has shards of another layout"):
        open_fields(open_store(url))


def test_damaged_shards_are_mended(monkeypatch, tmp_path, capsys):
    """A bit of a chunk in a shard is noticed by both readers; a lost shard, too, is named.

    Broken by: no with_checksums in create_arrays; chunks for shards in bad_chunks.
    """
    url = str(tmp_path / "store")
    cube = ["cube", "--months=24", "--height=20", "--width=36", "--chunk=[4,8,12]"]
    cube += ["--shard=[8,16,24]", f"--url={url}"]
    call(monkeypatch, *cube, script=build_store)
    salinity = tmp_path / "store" / "salinity" / "c"
    before = {path: path.read_bytes() for path in salinity.rglob("*/*/*")}
    damaged = salinity / "1" / "0" / "0"
    whole = before[damaged]
    # Where the first of its eight chunks is, by its index; a checksum of 4 bytes follows.
    place, size = struct.unpack("<QQ", whole[-4 - 8 * 16 :][:16])
    chunk = tmp_path / "chunk"
    chunk.write_bytes(whole[place : place + size])
    flip_a_bit(chunk)
    damaged.write_bytes(whole[:place] + chunk.read_bytes() + whole[place + size :])
    settings = {"url": url, "window": (2, 18, 36), "train_stride": (2, 18, 36)}
    settings |= {"train_period": ("1900-01", "1901-07")}
    settings |= {"val_period": ("1901-10", "1901-12")}
    for reader in (CloudDataset, FastDataset):
        dataset = reader("train", **settings)
        with pytest.raises(UserError, match="salinity/c/1/0/0"):
            dataset.__getitems__(range(len(dataset)))

    (salinity / "2" / "1" / "1").unlink()
    call(monkeypatch, "check", f"--url={url}", "--repair=true", script=build_store)
    output = capsys.readouterr().out
    assert re.findall("missing: (.*)", output) == [
        "salinity/c/1/0/0",
        "salinity/c/2/1/1",
    ]
    assert "all chunks are there" in output
    assert {path: path.read_bytes() for path in salinity.rglob("*/*/*")} == before


def without_first_chunk(shard: bytes) -> bytes:
    """A shard of eight chunks whose index has lost the first one."""
    # An entry of the index is the place of a chunk and its size; a checksum of 4 bytes follows.
    index = bytearray(shard[-4 - 8 * 16 : -4])
    index[:16] = b"\xff" * 16
    checksum = google_crc32c.value(bytes(index)).to_bytes(4, "little")
    return shard[: -4 - 8 * 16] + bytes(index) + checksum


def test_a_stream_reads_each_chunk_once(proxy):
    """Also with two ranks, which share none. Broken by: `held` blocks not in epoch_order."""
    settings = SETTINGS | {"url": STREAM, "window": (1, 8, 8), "streams": 2}
    dataset = ChunkStream("train", packed=True, **settings)
    order = dataset.epoch_order(len(dataset), seed=0, epoch=0)
    assert sorted(order) == [*range(len(dataset))]
    assert order == dataset.epoch_order(len(dataset), seed=0, epoch=0)
    assert order != dataset.epoch_order(len(dataset), seed=0, epoch=1)
    proxy.faults = [Fault("", times=10_000, path="/c/")]  # counts, and does nothing
    for _ in Loaders(lambda _: dataset, batch_size=4).train_loader(lambda: 0):
        pass
    # Chunks of months, latitudes, longitudes.
    assert 10_000 - proxy.faults[0].times == 8 * 2 * 4
    months = [
        {dataset.grid.slices(index)[0].start // 2 for index in order[rank::2]}
        for rank in (0, 1)
    ]
    assert not months[0] & months[1]
    ranks = {"is_initialized": lambda: True, "get_world_size": lambda: 2}
    with mock.patch.multiple("torch.distributed", **ranks):
        half = ChunkStream("train", packed=True, **settings)
    assert half.cache_mb == pytest.approx(dataset.cache_mb / 2)


def test_memory_of_workers():
    """As README.md says, for three of them. Broken by: one reader; one set of workers."""
    build_small()
    dataset = FastDataset("train", **SETTINGS, concurrency=2, cache_mb=1)
    loader = mock.Mock(dataset=dataset, num_workers=3, prefetch_factor=2)
    batch = 2 * 4 * math.prod(dataset.sample_shape)
    chunks = 3 * 2 * dataset.level_bytes
    expected = (2 * 3 * (2 + 2) + 3) * batch + chunks + 2 * 3 * 1e6
    assert memory_needed(loader, batch_size=2) == expected


MEMORY = """
import json, re, sys
from pathlib import Path
from src.data.fast_dataset import FastDataset
from src.data.loaders import Loaders
from src.callbacks.loader_report import memory_needed

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

settings, batch_size, aheads = json.loads(sys.argv[1])
FastDataset("train", **settings)  # imports, connections
before = peak()
for ahead in aheads:
    dataset = FastDataset("train", batches_ahead=ahead, **settings)
    loaders = Loaders(lambda _: dataset, batch_size)
    loader = loaders.train_loader(lambda: 0)
    for x, _ in loader:
        # All that was asked for is there, as after a long training step.
        for _, futures in dataset.requests.values():
            for future in futures:
                future.result()
    for y, _ in loaders.val_loader():
        pass
    print("peak", x.nbytes, memory_needed(loader, batch_size), peak() - before, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("batch_size", "aheads", "cache_mb", "encoding"),
    [
        (5, (0, 2, 8), 0, {}),
        (2, (2,), 40, {}),  # a cache that is larger than a batch, and full
        (3, (16,), 0, {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999}),
    ],
    ids=["plain", "cache", "packed integers"],
)
def test_memory_is_what_the_first_line_says(
    tmp_path, batch_size, aheads, cache_mb, encoding
):
    """To less than one batch of 25 to 62 MB; validation, too.

    glibc is told to give back freed chunks at once: it would keep some 100 MB of them. Broken by:
    read() instead of write() in FastDataset.prefetch; or, in memory_needed, + 4, no `caches`, or no
    look at is_plain or at itemsize.
    """
    train = ("1900-01", "1902-06")
    store, statistics = str(tmp_path / "store"), str(tmp_path / "statistics")
    fields = cube_fields((54, 180, 360), (12, 90, 180)).drop_encoding()
    encoding = dict.fromkeys(fields, encoding)
    fields.to_zarr(store, encoding=encoding, zarr_format=3, write_empty_chunks=True)
    add_statistics(store, train, to=statistics)
    settings = {
        "url": store,
        "statistics_store": statistics,
        "window": (12, 180, 360),
        "train_stride": (3, 1, 40),
        "train_period": train,
        "val_period": ("1903-07", "1904-06"),
        "concurrency": 4,
        "cache_mb": cache_mb,
    }
    words = [sys.executable, "-c", MEMORY, json.dumps([settings, batch_size, aheads])]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    output = subprocess.check_output(words, cwd=CHAPTER, env=environment, text=True)
    output = output.splitlines()
    lines = [line.split()[1:] for line in output if line.startswith("peak")]
    assert len(lines) == len(aheads)
    for batch, stated, grown in lines:
        assert int(batch) > 20e6
        assert abs(float(stated) - int(grown)) < int(batch), output
