"""The fast reader's samples, their order and the trainings on them are chapter 2's, to the bit."""

from pathlib import Path
from unittest.mock import Mock

import lightning_trainer
import pytest
import s3fs
import torch
from torch.testing import assert_close

from src.callbacks import LoaderReport
from src.data.fast_dataset import FastDataset
from src.data.loaders import Loaders
from src.data.look_ahead import LookAhead
from src.data.store import embedded_server, file_system
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.config import CHAPTER
from tests.fault_proxy import FaultyProxy
from tests.layouts import SETTINGS, URL, build_small, write_public
from tests.runs import assert_same_run, call, train

SAME = {"rtol": 0, "atol": 0, "equal_nan": True}
NAMES = ["sea_surface_height", "current_speed"]


def loaders(
    reader=FastDataset, num_workers=0, rank=0, world_size=1, **settings
) -> Loaders:
    settings = {"url": build_small(), "variables": NAMES, **SETTINGS, **settings}
    return Loaders(
        lambda split: reader(split, **settings),
        num_workers=num_workers,
        rank=rank,
        world_size=world_size,
    )


def batches(*arguments, step=0, **settings) -> list:
    return list(loaders(*arguments, **settings).train_loader(lambda: step))


@pytest.mark.parametrize("number", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_are_those_of_the_slow_reader(number):
    """Windows across the edge, too. Broken by: no ts.concat in FastDataset.array."""
    assert_close(batches(num_workers=number), batches(CloudDataset), **SAME)


@pytest.mark.parametrize(("zarr_format", "packed"), [(2, False), (2, True), (3, True)])
def test_any_layout_is_read_as_the_slow_reader_reads_it(tmp_path, zarr_format, packed):
    """Broken by: no transpose or level in on_grid; no unpack; always zarr3."""
    settings = write_public(tmp_path, zarr_format, packed)
    slow = CloudDataset("train", **settings)
    indices = range(len(slow))
    fast = FastDataset("train", **settings).__getitems__(indices)
    assert_close(fast, slow.__getitems__(indices), **SAME)


def test_an_epoch_that_is_left_leaves_nothing():
    """It goes on in its middle. Broken by: no forget_requests in LookAhead."""
    expected = batches(CloudDataset)
    ours = loaders(batches_ahead=2)
    loader = iter(ours.train_loader(lambda: 0))
    for number in range(4):
        assert_close(next(loader), expected[number], **SAME)
        assert len(ours.train_set.requests) == min(number, 2)  # on their way
    # Batches 4 and 5 are on their way; this epoch begins behind them.
    assert_close(list(ours.train_loader(lambda: 6)), expected[6:], **SAME)
    assert not ours.train_set.requests


def test_ranks_share_training_and_validation_which_are_read_ahead():
    """Broken by: no rank in train_loader; no read_ahead in in_order."""
    ranks = [loaders(rank=rank, world_size=2) for rank in (0, 1)]
    parts = [list(each.train_loader(lambda: 0)) for each in ranks]
    for (x, index), *halves in zip(batches(CloudDataset), *parts, strict=True):
        for rank, half in enumerate(halves):
            assert_close(half, [x[rank::2], index[rank::2]], **SAME)
    assert isinstance(ranks[0].val_loader().batch_sampler, LookAhead)
    validated = [index for each in ranks for _, index in each.val_loader()]
    assert torch.cat(validated).tolist() == list(range(len(ranks[0].val_set)))


@pytest.mark.slow
def test_a_training_is_that_of_the_data_in_memory(monkeypatch, tmp_path, capsys):
    """LightningCLI's predict runs, too. Broken by: float64 in `np.empty` of prefetch."""
    settings = [f"-c={CHAPTER}/tests/ocean.yaml", "--trainer.max_epochs=1"]
    memory = train(monkeypatch, tmp_path / "memory", *settings)
    settings.append(f"-c={CHAPTER}/tests/fast.yaml")
    fast = train(monkeypatch, tmp_path / "fast", *settings)
    assert_same_run(memory, fast)
    assert capsys.readouterr().out.count("loader    first batch") == 2
    file = f"-c={CHAPTER}/config/cli_config.yaml"
    call(
        monkeypatch, "predict", file, "--trainer.logger=false", script=lightning_trainer
    )


def test_the_line_is_of_the_slowest_rank_and_leaves_validation_out(monkeypatch, capsys):
    """Broken by: no reduce; no on_validation_end."""
    clock = iter([0, 1, 2, 50, 51, 53])  # in the order of the calls below
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    report = LoaderReport()
    report.on_train_epoch_start()
    report.on_train_batch_start()
    report.on_train_batch_end()
    report.on_validation_end()
    report.on_train_batch_start()
    report.on_train_batch_end()
    trainer = Mock(is_global_zero=True)
    trainer.strategy.reduce = lambda numbers, reduce_op: (
        numbers + torch.tensor([0, 1, 1])
    )
    report.on_train_epoch_end(trainer, Mock(device="cpu"))
    assert "first batch 1.00 s, waited 3.0 of 6.0 s" in capsys.readouterr().out


def test_another_server(monkeypatch, tmp_path):
    """With keys of a profile, and a region; none if anonymous. Broken by: each line of kvstore."""
    server = embedded_server(URL)
    with FaultyProxy(server["AWS_ENDPOINT_URL"]) as cloud:
        keys = Path(server["AWS_SHARED_CREDENTIALS_FILE"]).read_text()
        (tmp_path / "keys").write_text(keys.replace("default", "me"))
        monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.url)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
        monkeypatch.setenv("AWS_PROFILE", "me")
        monkeypatch.setenv("AWS_REGION", "eu-north-7")
        s3fs.S3FileSystem.clear_instance_cache()  # it does not look at the environment
        file_system("s3://other")[0].mkdirs("other", exist_ok=True)
        settings = SETTINGS | {"url": build_small("s3://other/small.zarr")}
        fast = FastDataset("train", **settings)
        cloud.headers.clear()
        assert fast[0][0].isfinite().any()
        assert all("/eu-north-7/s3/aws4" in headers for headers in cloud.headers)
        fast.anonymous = True
        fast.opened = None
        cloud.headers.clear()
        with pytest.raises(Exception, match="s3://other"):
            fast[0]
        assert not any("aws4" in headers for headers in cloud.headers)
        cloud.shutdown()
