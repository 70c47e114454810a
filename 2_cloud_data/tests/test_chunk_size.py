"""The chunk calculator: the blog's table, every window counted, a server that counts requests."""

import itertools
import math
import re
import runpy
import sys
import time
import urllib.request

import chunk_size
import matplotlib.pyplot as plt
import numpy as np
import pytest
import zarr
from chunk_size import Access, best_chunk, best_shard, chunks_touched
from s3fs import S3FileSystem
from src.data.s3_server import BUCKET, connect, disconnect
from zarr.core.sync import sync
from zarr.storage import FsspecStore, MemoryStore

# The table of the blog's appendix, "Optimal Chunking", as it was published.
BLOG = """
chunk_size minimal_chunks maximal_chunks minimal_bytes maximal_bytes 8x8 64 81 4096 5184 16x16 16 25
4096 6400 32x32 4 9 4096 9216 64x64 1 4 4096 16384 128x128 1 4 16384 65536 256x256 1 4 65536 262144
512x512 1 4 262144 1048576 1024x1024 1 4 1048576 4194304
"""
OCEAN = {"window": (12, 16, 32), "shape": (1200, 720, 1440), "element_bytes": 16}


def access(window, shape=None, stride=None, **settings) -> Access:
    """At 30 ms and 100 MB/s, one byte for each element."""
    network = {"element_bytes": 1, "latency": 0.03, "bandwidth": 1e8, "concurrency": 1} | settings
    return Access(window, shape or (None,) * len(window), stride or window, **network)


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["chunk_size.py", *arguments])
    return chunk_size.main()


@pytest.mark.parametrize("arguments", ["", "--chunks 8 16 32 64 128 256 512x512 1024"])
def test_reproduces_the_blogs_table(monkeypatch, capsys, arguments):
    assert run(monkeypatch, *arguments.split()) == 0
    table, _, _ = capsys.readouterr().out.partition("\n\n")
    assert table.split() == BLOG.split()


CASES = [
    # window, chunk, shape, stride
    ((64,), (8,), (None,), (1,)),
    ((5,), (12,), (None,), (9,)),
    ((1,), (1,), (7,), (3,)),
    ((7,), (4,), (7,), (1,)),  # only one window fits
    ((9,), (6,), (10,), (1,)),
    ((3,), (50,), (20,), (4,)),  # a single chunk
    ((4, 6), (3, 8), (11, 30), (1, 1)),
    ((4, 6), (3, 8), (None, 30), (2, 5)),  # no end along the first axis only
    ((2, 3, 4), (2, 2, 3), (None, None, None), (1, 3, 2)),
    ((2, 3, 4), (3, 2, 5), (7, 9, 11), (1, 1, 5)),
]


def touched(start, window, chunk) -> int:
    """Look at each element of a window, and collect the chunks that they lie in."""
    ranges = (range(first, first + size) for first, size in zip(start, window, strict=True))
    places = (zip(element, chunk, strict=True) for element in itertools.product(*ranges))
    return len({tuple(e // size for e, size in place) for place in places})


@pytest.mark.parametrize(("window", "chunk", "shape", "stride"), CASES)
def test_counts_each_window(window, chunk, shape, stride):
    """The least, the most and the mean are those of all windows, each counted by its elements."""
    starts = [
        range(0, 2 * math.lcm(size, step) if end is None else end - length + 1, step)
        for length, size, end, step in zip(window, chunk, shape, stride, strict=True)
    ]
    numbers = [touched(start, window, chunk) for start in itertools.product(*starts)]
    counted = access(window, shape, stride).count(chunk, stride)
    expected = min(numbers), max(numbers), sum(numbers) / len(numbers)
    assert counted == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("window", [1, 5, 64])
@pytest.mark.parametrize("chunk", [1, 3, 63, 64, 65, 1024])
def test_closed_form_of_random_windows(window, chunk):
    spill = (window - 1) / chunk
    expected = math.ceil(window / chunk), 1 + math.ceil(spill), 1 + spill
    assert access((window,)).count((chunk,)) == pytest.approx(expected, rel=1e-12)


def test_time_is_waiting_and_transfer():
    slow = {"latency": 0.03, "bandwidth": 1e6}
    assert access((64,), **slow).seconds(2.5, (1000,)) == pytest.approx(0.075 + 0.0025)
    assert access((64,), **slow, concurrency=10).seconds(2.5, (1000,)) == pytest.approx(0.01)


NETWORKS = [{}, {"concurrency": 64}, {"latency": 0.001}, {"bandwidth": 1e6}, {"latency": 1.0}]


@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("stride", [None, (1, 1, 10), (12, 16, 32)])
def test_recommended_chunk_is_better_than_its_neighbours(network, stride):
    """Than those that are half or twice as long along one axis."""
    reading, (least, most) = access(**OCEAN | network), chunk_size.CHUNK_BYTES
    best = best_chunk(reading, stride)
    assert least <= reading.num_bytes(best) <= most
    for axis, factor in itertools.product(range(3), (0.5, 2)):
        other = tuple(math.ceil(s * factor) if n == axis else s for n, s in enumerate(best))
        if other[axis] <= OCEAN["shape"][axis] and least <= reading.num_bytes(other) <= most:
            fast, slow = (reading.count(chunk, stride).mean for chunk in (best, other))
            assert reading.seconds(fast, best) <= reading.seconds(slow, other)


def test_windows_side_by_side_want_chunks_like_them():
    assert best_chunk(access(**OCEAN), OCEAN["window"]) == OCEAN["window"]


def test_one_element_may_be_larger_than_the_largest_chunk():
    assert best_chunk(access((2, 2), element_bytes=2**25)) == (1, 1)


SHAPES = [(1200, 720, 1440), (12000, 7200, 14400), (100, 30, 40), (None, 720, 1440)]


@pytest.mark.parametrize("shape", SHAPES)
def test_shards_are_few_and_not_large(shape):
    reading, chunk = access(**OCEAN | {"shape": shape}), (12, 32, 64)
    shard = best_shard(reading, chunk)
    assert all(outer % inner == 0 for outer, inner in zip(shard, chunk, strict=True))
    size, objects = reading.num_bytes(shard), math.prod(reading.num_objects(shard))
    least, most = chunk_size.SHARD_BYTES
    assert objects == 1 or least <= size <= most
    assert objects <= chunk_size.MANY_OBJECTS or size > most // 2


def test_recommendation_can_be_pasted(monkeypatch, capsys):
    arguments = "--window 12 16 32 --shape 120 72 144 --itemsize 4 --variables 4 --recommend"
    assert run(monkeypatch, *arguments.split()) == 0
    *_, call = capsys.readouterr().out.splitlines()
    create = {"store": MemoryStore(), "shape": (4, 120, 72, 144), "dtype": "float32"}
    array = eval(call.replace("...", "**create"), {"zarr": zarr, "create": create})
    assert array.chunks[0] == array.shards[0] == 4


def test_one_chunk_needs_no_shards(monkeypatch, capsys):
    run(monkeypatch, "--shape", "99", "99", "--recommend")
    assert capsys.readouterr().out.endswith("zarr.create_array(..., chunks=(99, 99))\n")


def test_picture(monkeypatch, tmp_path):
    file = tmp_path / "chunks.png"
    assert run(monkeypatch, "--plot", str(file)) == 0
    assert plt.imread(file).std() > 0.05


BAD_INPUT = {
    "--window 0 64": "--window: '0' is outside; allowed: whole numbers 1 to 10000000; see --help",
    "--window": "--window: expected at least one argument; see --help",
    "--shape 100 32": "--window: 64 is more than --shape has; allowed: 1 to 32",
    "--shape 100": "--shape: 100; allowed: 2 numbers, as in --window",
    "--stride 1 2 3": "--stride: 1x2x3; allowed: 2 numbers, as in --window",
    "--chunks 8 8x8x8": "--chunks: 8x8x8; allowed: 2 numbers, as in --window",
    "--chunks 8x-8": "--chunks: '-8' is outside; allowed: whole numbers 1 to 10000000; see --help",
    "--latency -3": "--latency: '-3' is outside; allowed: whole numbers 1 to 10000000; see --help",
    "--rec": "unrecognized arguments: --rec; see --help",
    "--plot chunks.txt": "--plot: chunks.txt is no picture; allowed: .png, .svg, .pdf",
    "--plot nowhere/a.png": "--plot: nowhere does not exist; allowed: a folder that does",
}


@pytest.mark.parametrize(("arguments", "expected"), BAD_INPUT.items(), ids=BAD_INPUT)
def test_bad_input(monkeypatch, capsys, arguments, expected):
    """One line, which Python prints on stderr before it exits with code 1, and nothing else."""
    monkeypatch.setattr(sys, "argv", ["chunk_size.py", *arguments.split()])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(chunk_size.__file__, run_name="__main__")
    assert caught.value.code == f"error: {expected}"
    assert not capsys.readouterr().out


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of these tests' own: its bucket as a Zarr store, and where it counts requests."""
    folder = tmp_path_factory.mktemp("s3")
    variables = connect(folder)
    fs = S3FileSystem(
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        key=variables["AWS_ACCESS_KEY_ID"],
        secret=variables["AWS_SECRET_ACCESS_KEY"],
        asynchronous=True,
        skip_instance_cache=True,
        # With more, s3fs asks for the size of a chunk before it reads it: two requests for each.
        max_concurrency=1,
    )
    client = sync(fs.set_session())
    yield FsspecStore(fs, path=BUCKET), variables["METRICS_URL"]
    sync(client.close())
    disconnect(folder)


def requests_and_bytes(url: str) -> np.ndarray:
    """Reads that the server has answered until now, and the bytes that it sent: (2,)."""
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    reads = rf'^SeaweedFS_s3_request_total{{bucket="{BUCKET}",code="20[06]",type="GET"}} (\S+)$'
    sent = rf'^SeaweedFS_s3_bucket_traffic_sent_bytes_total{{bucket="{BUCKET}"}} (\S+)$'
    found = (re.findall(counter, text, re.MULTILINE) for counter in (reads, sent))
    return np.array([sum(map(float, numbers)) for numbers in found])


def served(server, shape, window, starts, **chunks) -> list[float]:
    """Requests and bytes for these windows of a new array, a byte for each element."""
    store, url = server
    settings = {"dtype": "uint8", "compressors": None, "overwrite": True} | chunks
    settings["config"] = {"write_empty_chunks": True}  # zeros are chunks, too
    array = zarr.create_array(store, name="field", shape=shape, **settings)
    array[...] = 0
    before = requests_and_bytes(url)
    for start in starts:
        array[tuple(slice(s, s + w) for s, w in zip(start, window, strict=True))]
    time.sleep(0.2)  # the server counts a request after its answer
    return (requests_and_bytes(url) - before).tolist()


# stride, chunks, shards
READS = [((1, 1), (4, 3), None), ((5, 6), (5, 6), None), ((2, 3), (2, 3), (8, 6))]


@pytest.mark.slow
@pytest.mark.parametrize(("stride", "chunks", "shards"), READS)
def test_server_counts_the_mean(server, stride, chunks, shards):
    """All windows at multiples of a stride. Of each shard they touch, zarr reads the index, too."""
    shape, window = (14, 17), (5, 6)
    starts = list(itertools.product(range(0, 10, stride[0]), range(0, 12, stride[1])))
    objects = (chunks, shards) if shards else (chunks,)
    mean = sum(access(window, shape).count(size, stride).mean for size in objects)
    requests, _ = served(server, shape, window, starts, chunks=chunks, shards=shards)
    assert requests == pytest.approx(mean * len(starts), rel=1e-12)


@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("kind", ["random", "aligned"])
def test_server_counts_the_blogs_windows(server, size, kind):
    """Some windows of 64 x 64: requests and bytes, also those of chunks at the edge."""
    random = np.random.default_rng(size).integers(0, 137, (6, 2))
    starts = random if kind == "random" else np.array([[0, 0], [64, 128], [128, 64]])
    requests = int(chunks_touched(starts, 64, size).prod(axis=1).sum())
    counted = served(server, (200, 200), (64, 64), starts.tolist(), chunks=(size, size))
    assert counted == [requests, requests * size**2]
