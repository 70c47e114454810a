"""Faults of the store under the fast reader: retried, or one line; and the memory that it takes."""

import math
import random
import subprocess
import sys
import time

import pytest
from zarr.core.sync import sync

from src.config import CHAPTER
from src.data.build import build
from src.data.chunk_stream import ChunkStream
from src.data.cube import cube_fields
from src.data.fast_dataset import FastDataset
from src.data.loaders import Loaders
from src.data.s3_server import connect
from src.data.store import open_store
from src.errors import UserError
from tests.fault_proxy import Fault, FaultyProxy
from tests.stores import SETTINGS, URL, build_small

STREAM = URL.replace("small", "stream")


@pytest.fixture
def proxy(monkeypatch):
    build_small()
    build_small(STREAM, packed_months=2)
    with FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        yield proxy


@pytest.mark.parametrize("kind", ["503", "reset", "cut", "stall"])
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
    dataset = FastDataset("train", **(SETTINGS | {"patience": 2}))
    proxy.faults, start = [Fault(kind, math.inf, "/c/")], time.monotonic()
    with pytest.raises(UserError, match=r"^s3://.*: no answer in 2 s$"):
        dataset[0]
    assert time.monotonic() - start < 10


def test_a_lost_chunk_is_named():
    """Never read as land. Broken by: no fill_missing_data_reads in spec()."""
    url = URL.replace("small", "lost")
    build_small(url)
    sync(open_store(url, read_only=False).delete("salinity/c/0/0/0"))
    with pytest.raises(UserError, match=r"^s3://embedded/lost-.*salinity/c/0/0/0"):
        FastDataset("train", **(SETTINGS | {"url": url}))[0]


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
        damaged = bytearray(whole)
        bit = random.randrange(8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
        chunk.write_bytes(damaged)
        settings = SETTINGS | {"url": str(tmp_path), "window": (4, 18, 36)}
        settings |= {"train_stride": (4, 18, 36), "val_stride": (4, 18, 36)}
        with pytest.raises(UserError, match=f"{chunk.relative_to(tmp_path)}"):
            read_all(settings | {"packed": packed})
        chunk.write_bytes(whole)
    read_all(settings | {"packed": packed})


def read_all(settings: dict) -> None:
    for split in ("train", "val"):
        dataset = FastDataset(split, **settings)
        dataset.__getitems__(range(len(dataset)))


def test_a_packed_copy_has_to_be_there():
    build_small()
    with pytest.raises(UserError, match="there is no Zarr store"):
        FastDataset(
            "train", **SETTINGS | {"url": URL.replace("small", "none")}, packed=True
        )


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


MEMORY = """
import re, sys
from pathlib import Path
from src.data.fast_dataset import FastDataset
from src.data.loaders import Loaders

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3

settings = {"url": sys.argv[1], "window": (12, 180, 360), "train_stride": (1, 1, 40)}
settings |= {"train_period": ("1900-01", "1902-06"), "val_period": ("1903-07", "1904-06")}
for ahead in (0, 2, 8):
    dataset = FastDataset("train", batches_ahead=ahead, **settings)
    before = peak() if not ahead else before
    for x, _ in Loaders(lambda _: dataset, batch_size=5).train_loader(lambda: 0):
        pass
    print("peak", ahead, x.nbytes / 1e6, peak() - before, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_memory_is_what_the_summary_says(tmp_path):
    """With batches of 62 MB. Broken by: read() instead of write() in FastDataset.prefetch."""
    url = str(tmp_path / "cube.zarr")
    build(
        url,
        cube_fields((54, 180, 360), (12, 90, 180), seed=0),
        (12, 90, 180),
        ("1900-01", "1902-06"),
    )
    words = [sys.executable, "-c", MEMORY, url]
    output = subprocess.check_output(words, cwd=CHAPTER, text=True).splitlines()
    stated = [
        float(line.split()[-2]) for line in output if "batches take up to" in line
    ]
    measured = [line.split()[1:] for line in output if line.startswith("peak")]
    for most, (ahead, batch, grown) in zip(stated, measured, strict=True):
        assert float(batch) > 50
        assert (int(ahead) + 1) * float(batch) < float(grown) < most
