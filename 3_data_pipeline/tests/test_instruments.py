"""The stream's order, and what measures the readers."""

import math
import time
import urllib.request

import benchmark_datapipeline_configurations as benchmark
import ceiling
import numpy as np
import pytest
import yaml
from slow_network import slow_network

from src.data.chunk_stream import ChunkStream
from src.data.fast_dataset import FastDataset
from src.data.loaders import Loaders
from src.data.store import embedded_server
from src.run.config import CHAPTER
from src.run.errors import UserError
from tests.fault_proxy import FaultyProxy
from tests.layouts import URL, build, cube_fields

MANY_BLOCKS = {
    "url": URL.replace("small", "many"),
    "window": (1, 8, 8),
    "train_stride": (1, 4, 4),
    "train_period": ("1900-01", "1908-04"),
    "val_period": ("1909-01", "1909-12"),
}


@pytest.fixture
def many_blocks() -> str:
    """Twenty-five rows of chunks along time, of four months each, for the training."""
    fields = cube_fields((120, 16, 16), (4, 16, 16))[["salinity"]]
    build(MANY_BLOCKS["url"], fields, (4, 16, 16), MANY_BLOCKS["train_period"])


def test_one_process_reads_each_chunk_once(monkeypatch, many_blocks):
    """Which a random order does not. Broken by: no (-1) ** part, or no 1.2, in ChunkStream."""
    with FaultyProxy(embedded_server(URL)["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        most = []
        for reader in (ChunkStream, FastDataset):
            loaders = Loaders(lambda split, kind=reader: kind(split, **MANY_BLOCKS))
            proxy.asked.clear()
            indices = [i for _, index in loaders.train_loader(lambda: 0) for i in index]
            assert len(set(map(int, indices))) == len(indices)
            chunks = {k: n for k, n in proxy.asked.items() if "salinity/c/" in k}
            most.append(max(chunks.values()))
        proxy.shutdown()
    assert most[0] == 1 < most[1]


@pytest.mark.parametrize(("streams", "ranks"), [(4, 2), (4, 4), (8, 4), (8, 8)])
def test_ranks_read_few_chunks_twice(many_blocks, streams, ranks):
    """As few as equal shares allow. Broken by: sorted without reversed digits."""
    dataset = ChunkStream("train", **MANY_BLOCKS, streams=streams)
    number = len(dataset)
    order = dataset.epoch_order(number, seed=0, epoch=1)
    assert sorted(order) == list(range(number))
    blocks = np.array(order) * 100 // number // 4
    loads = sum(len(set(blocks[rank::ranks].tolist())) for rank in range(ranks))
    assert loads <= 25 + ranks - math.gcd(25, ranks)
    with pytest.raises(UserError, match="40 streams of 25 rows of chunks"):
        ChunkStream("train", **MANY_BLOCKS, streams=40).epoch_order(number, 0, 0)


def test_a_slow_network_delays_each_request():
    """Broken by: no sleep in pump."""
    with slow_network(0.2):
        start = time.monotonic()
        endpoint = embedded_server(URL)["AWS_ENDPOINT_URL"]
        urllib.request.urlopen(f"{endpoint}/healthz")
        assert time.monotonic() - start >= 0.2


@pytest.mark.slow
def test_benchmark_and_ceiling_print_and_draw(
    monkeypatch, tmp_path, capsys, many_blocks
):
    """Broken by: dataset_args that replace those of the defaults; no check of the keys."""
    monkeypatch.setattr(benchmark, "CHAPTER", tmp_path)
    ladder = CHAPTER / "benchmark_configs" / "ladder.yaml"
    content = yaml.safe_load(ladder.read_text())
    content["defaults"] |= {"delay": 0.01, "seconds": 0.1, "dataset_args": MANY_BLOCKS}
    one = content["configurations"]["one window after the other"]
    content["configurations"] = {"one": one, "two": {"batch_size": 8}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    benchmark.main(str(file), repeats=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(benchmark.COLUMNS)
    assert [line.split()[0] for line in lines[1:]] == ["one", "two", "look"]
    assert (tmp_path / "benchmark_logs" / "mine.png").exists()
    ceiling.main(str(file), delay=0, num_batches=22)
    assert "loader" in capsys.readouterr().out
    content["configurations"]["two"] = {"num_worker": 1}
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match="unknown keys"):
        benchmark.main(str(file))
