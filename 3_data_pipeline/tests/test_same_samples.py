"""The fast reader's samples, their order and the trainings on them are chapter 2's, to the bit."""

import json
import os

import lightning as L
import numpy as np
import pytest
import s3fs
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.testing import assert_close
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from src.callbacks import loader_report
from src.callbacks.loader_report import (
    LoaderReport,
    limiting_stage,
)
from src.data.fast_dataset import FastDataset
from src.data.lightning_datamodule import RankLoaders
from src.data.loaders import Loaders
from src.data.look_ahead import LookAhead
from src.data.s3_server import CREDENTIALS, connect
from src.data.tensorstore_arrays import is_plain, kvstore
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.config import CHAPTER
from src.run.distributed import check_samples
from src.run.errors import UserError
from tests import layouts
from tests.runs import rows, saved, train
from tests.stores import SETTINGS, build_small
from tests.strict_server import BUCKET, secret, strict_server

MEMORY, FAST = f"-c={CHAPTER}/tests/ocean.yaml", f"-c={CHAPTER}/tests/fast.yaml"
SAME = {"rtol": 0, "atol": 0, "equal_nan": True}


@pytest.fixture(scope="module", autouse=True)
def _store():
    build_small()


def batches(reader, step=0, number=0, loaders=Loaders, **settings) -> list:
    """What a loader gives from this step on."""
    made = loaders(
        dataset=lambda split: reader(split, **SETTINGS, **settings), num_workers=number
    )
    return list(made.train_loader(lambda: step))


@pytest.mark.parametrize(
    ("packed", "number"),
    [(False, 0), (True, 0), pytest.param(True, 2, marks=pytest.mark.slow)],
)
def test_batches_are_those_of_the_slow_reader(packed, number):
    """Windows across the edge, and a selection of variables, too.

    Broken by: no ts.concat in FastDataset.array, or the levels of use_packed_copy in order.
    """
    names = ["sea_surface_height", "current_speed"]
    expected = batches(CloudDataset, variables=names)
    fast = batches(
        FastDataset, number=number, packed=packed, variables=names, batches_ahead=3
    )
    assert_close(fast, expected, **SAME)


def test_the_embedded_server_leaves_the_keys_of_other_buckets(monkeypatch):
    """Broken by: os.environ |= connect() in kvstore(): checkpoints would go to the wrong server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere.example")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    FastDataset("train", **SETTINGS)[0]  # sets what TensorStore's network code reads
    before = dict(os.environ)
    FastDataset("train", **SETTINGS | {"patience": 21})[0]
    assert os.environ == before


def test_two_ranks_read_the_batches_of_one():
    """Broken by: no `rank` in RankLoaders.train_loader."""
    for (x, index), *parts in zip(
        batches(CloudDataset),
        *(
            batches(
                FastDataset, loaders=lambda rank=rank, **s: RankLoaders(rank, 2, **s)
            )
            for rank in (0, 1)
        ),
        strict=True,
    ):
        for rank, (part, numbers) in enumerate(parts):
            assert_close((part, numbers), (x[rank::2], index[rank::2]), **SAME)


def test_look_ahead_knows_the_ranks_of_its_sampler():
    """check_samples looks for them.

    Broken by: world_size = 2, or a rank, whatever the sampler; no sampler in LookAhead.
    """
    loaders = RankLoaders(1, 2, dataset=lambda split: FastDataset(split, **SETTINGS))
    assert loaders.train_loader(lambda: 0).batch_sampler.world_size == 2
    knows_no_ranks = LookAhead([[0], [1]], loaders.train_set)
    assert knows_no_ranks.world_size == 1
    assert not hasattr(knows_no_ranks, "rank")
    shared = DistributedSampler(loaders.train_set, num_replicas=2, rank=1)
    batches = LookAhead(BatchSampler(shared, 2, False), loaders.train_set)
    check_samples(DataLoader(loaders.train_set, batch_sampler=batches), 2)


def test_an_epoch_goes_on_in_its_middle():
    """After another one that was left. Broken by: no forget_requests in LookAhead."""
    loaders = Loaders(lambda split: FastDataset(split, **SETTINGS, batches_ahead=2))
    expected = batches(CloudDataset)
    loader = iter(loaders.train_loader(lambda: 0))
    for number in range(4):
        assert_close(next(loader), expected[number], **SAME)
        assert len(loaders.train_set.requests) == min(number, 2)  # under way
    # Batches 4 and 5 are under way; this epoch begins behind them.
    assert_close(list(loaders.train_loader(lambda: 6)), expected[6:], **SAME)
    assert not loaders.train_set.requests


@pytest.mark.slow
def test_a_training_is_that_of_the_data_in_memory(monkeypatch, tmp_path, capsys):
    """Broken by: float64 in `np.empty` of FastDataset.prefetch."""
    settings = [MEMORY, "--trainer.max_epochs=1"]
    memory = train(monkeypatch, tmp_path / "memory", *settings)
    fast = train(monkeypatch, tmp_path / "fast", *settings, FAST)
    assert rows(memory) == rows(fast)
    assert_close(*(saved(run)["state_dict"] for run in (memory, fast)), **SAME)
    assert (memory / "summary.json").read_text() == (fast / "summary.json").read_text()
    output = capsys.readouterr().out
    assert "loader    batches, chunks under way and caches take up to " in output
    assert output.count("what limits is") == 2  # two runs of an epoch


def test_other_loaders_and_modules_have_the_line(tmp_path, capsys):
    """Lightning's own. Broken by: an attribute of our datasets, or of our module."""
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        callbacks=[LoaderReport()],
    )
    trainer.fit(BoringModel())
    assert "what limits is" in capsys.readouterr().out


def test_waiting_leaves_validation_out(monkeypatch):
    """Also inside an epoch. Broken by: no on_validation_end."""
    clock = iter([0, 1, 2, 50, 51, 53])  # in the order of the calls below
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    said = []
    monkeypatch.setattr(loader_report, "print_line", said.append)
    report = LoaderReport()
    report.dataset = None
    report.on_train_epoch_start()
    report.on_train_batch_start()
    report.on_train_batch_end()
    report.on_validation_end()
    report.on_train_batch_start()
    report.on_train_batch_end()
    report.on_train_epoch_end()
    assert said[0].startswith("first batch after 1.0 s, then waited 1.0 of 4.0 s")


def test_the_limiting_stage_is_named():
    """Broken by: `store < decoding` in limiting_stage."""
    assert limiting_stage(0.01, store=5, decoding=1) == "the model"
    assert limiting_stage(0.5, store=5, decoding=1) == "the store"
    assert limiting_stage(0.5, store=1, decoding=5) == "decoding and copying"
    assert limiting_stage(0.5, store=0, decoding=0) == "the loader"


@pytest.mark.parametrize(("zarr_format", "packed"), [(2, False), (2, True), (3, True)])
def test_any_layout_is_read_as_the_slow_reader_reads_it(tmp_path, zarr_format, packed):
    """To the bit. Broken by: no transpose or level in on_grid; no unpack; always zarr3."""
    url = layouts.write_layout(tmp_path, zarr_format, packed)
    settings = layouts.SETTINGS | {"statistics_store": str(tmp_path), "url": url}
    slow = CloudDataset("train", **settings)
    fast = FastDataset("train", **settings)
    # All levels are in the same chunk.
    assert fast.levels_in_chunk == {("temperature", 0): 3, ("salinity", 0): 1}
    indices = range(len(slow))
    pairs = zip(slow.__getitems__(indices), fast.__getitems__(indices), strict=True)
    for (x, _), (y, _) in pairs:
        np.testing.assert_array_equal(x, y)

    # A lost chunk, and a codec that TensorStore does not have.
    array = tmp_path / "store.zarr" / "salinity"
    chunk = "0.0.0" if zarr_format == 2 else "c/0/0/0"
    (array / chunk).unlink()
    with pytest.raises(UserError, match=f"salinity/{chunk}"):
        fast[0]
    if zarr_format == 2:
        about = json.loads((array / ".zarray").read_text())
        about["filters"] = [{"id": "delta", "dtype": "<i2"}]
        (array / ".zarray").write_text(json.dumps(about))
        with pytest.raises(UserError, match="CloudDataset may be able to read it"):
            FastDataset("train", **settings)[0]


def test_a_list_of_missing_values_is_a_packing():
    """As some programs write it. Broken by: math.isnan of the attribute."""
    encoding = {"dtype": np.dtype("float32"), "_FillValue": np.nan}
    assert is_plain(encoding)
    assert not is_plain(encoding | {"missing_value": [1e20]})


def test_keys_come_from_where_boto_looks(monkeypatch):
    """A profile, for a server that checks signatures. Broken by: `environment` in kvstore()."""
    server = connect()
    for name in server:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(CREDENTIALS))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()  # earlier ones have found no keys
    s3fs.S3FileSystem().mkdirs("other", exist_ok=True)
    url = "s3://other/small.zarr"
    build_small(url)
    settings = SETTINGS | {"url": url}
    slow, fast = CloudDataset("train", **settings), FastDataset("train", **settings)
    assert_close(slow[3][0], fast[3][0], **SAME)
    place = kvstore(url, anonymous=True)
    assert place["aws_region"] == "eu-north-1"
    assert place["aws_credentials"] == {"type": "anonymous"}


def test_a_reader_who_may_not_list_and_nobody(monkeypatch, tmp_path):
    """On a server that checks signatures and rights. Broken by: `anonymous` that kvstore ignores.

    Broken by: AWS_DEFAULT_REGION alone there: the server would be asked with another signature.
    """
    url = f"s3://{BUCKET}/small.zarr"
    settings = SETTINGS | {"url": url}
    monkeypatch.setenv("AWS_REGION", "eu-north-7")
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, "/dev/null")

    def become(name: str) -> None:
        s3fs.S3FileSystem.clear_instance_cache()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret(name))

    with strict_server(tmp_path) as (endpoint, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        become("admin")
        build_small(url)
        expected = CloudDataset("train", **settings)[3][0]
        assert kvstore(url, anonymous=False)["aws_region"] == "eu-north-7"
        for name, anonymous in (("reader", False), ("wrong", True)):
            become(name)
            fast = FastDataset("train", anonymous=anonymous, **settings)
            assert_close(fast[3][0], expected, **SAME)
