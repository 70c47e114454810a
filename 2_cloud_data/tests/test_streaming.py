"""The streamed samples and trainings are those of the data in memory, to the bit."""

import lightning_train
import numpy as np
import pytest
import torch
from src.config import CHAPTER
from src.data.build import build, ocean_fields
from src.data.loaders import Loaders
from src.data.pytorch_dataset import OceanDataset
from src.data.s3_server import connect
from src.data.usecase_cloud_dataset import CloudDataset

from tests.fault_proxy import FaultyProxy
from tests.runs import rows, saved, start, train

OCEAN, CLOUD = f"-c={CHAPTER}/tests/ocean.yaml", f"-c={CHAPTER}/tests/cloud.yaml"


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To the bit; a value that is not there (land) only where the other has none."""
    return torch.equal(a.nan_to_num(-999), b.nan_to_num(-999))


@pytest.mark.parametrize("dask", ["none", "single-threaded", "threads"])
def test_samples_are_those_in_memory(dask):
    """Also across the edge of the grid. Broken by: no second part in lazy_window."""
    memory, cloud = OceanDataset("train"), CloudDataset("train", dask=dask)
    assert len(memory) == len(cloud)
    np.testing.assert_array_equal([memory.mean, memory.std], [cloud.mean, cloud.std])
    indices = [0, 42, 43, 1000, len(memory) - 1]
    for index, (x, _) in zip(indices, cloud.__getitems__(indices), strict=True):
        assert equal(x, memory[index][0])
        assert equal(cloud.climatology(index), memory.climatology(index))
        for a, b in zip(cloud.coordinates(index), memory.coordinates(index), strict=True):
            np.testing.assert_array_equal(a, b)


def test_workers_read_the_same_batches():
    """Broken by: no __getstate__: a worker would wait for connections of its parent."""
    stride = {"train_stride": (6, 2, 40)}
    batches = []
    for num_workers in (0, 2):
        loaders = Loaders(lambda split: CloudDataset(split, **stride), 8, num_workers)
        batches.append([x for x, _ in loaders.train_loader(lambda: 0)])
    for a, b in zip(*batches, strict=True):
        assert equal(a, b)


def test_a_training_is_that_of_the_data_in_memory(monkeypatch, tmp_path):
    """Rows and weights. Broken by: statistics of other months (0, 31)."""
    memory = train(monkeypatch, tmp_path / "memory", OCEAN, script=lightning_train)
    cloud = train(monkeypatch, tmp_path / "cloud", OCEAN, CLOUD, script=lightning_train)
    assert rows(memory) == rows(cloud)
    a, b = (saved(folder, "last.ckpt")["state_dict"] for folder in (memory, cloud))
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert (memory / "summary.json").read_text() == (cloud / "summary.json").read_text()


@pytest.mark.slow
def test_two_ranks_stream_the_curve_of_one_process_in_memory(monkeypatch, tmp_path):
    memory = train(monkeypatch, tmp_path / "memory", OCEAN)
    ddp = [OCEAN, CLOUD, "--trainer.devices=2", "--trainer.strategy=ddp"]
    process = start(tmp_path, *ddp, command=["lightning_train.py"])
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    for a, b in zip(rows(memory), rows(tmp_path / "run_1"), strict=True):
        if int(a["step"]) <= 50 and a["train_loss"]:
            assert float(b["train_loss"]) == pytest.approx(float(a["train_loss"]), rel=1e-5)


def test_windows_avoid_months_without_values(tmp_path):
    """Broken by: no has_values in CloudDataset.__init__."""
    fields = ocean_fields()
    fields["surface_temperature"][20] = np.nan
    build(str(tmp_path), fields, (54, 18, 72), (0, 30))
    dataset = CloudDataset("train", str(tmp_path))
    months = {dataset.slices(index)[0].start for index in range(len(dataset))}
    assert months == {*range(9)}  # up to month 8 the window ends before month 20


def test_a_cache_on_the_local_disk(monkeypatch, tmp_path):
    """Fsspec's own, in the URL: a second reader asks the server for no chunk."""
    monkeypatch.chdir(tmp_path)
    expected, url = CloudDataset("train")[0][0], "filecache::s3://embedded/ocean.zarr"
    for has_cache in (False, True):
        with FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
            monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
            assert equal(CloudDataset("train", url)[0][0], expected)
        assert has_cache == (not [path for _, path in proxy.requests if "temperature/c/" in path])
