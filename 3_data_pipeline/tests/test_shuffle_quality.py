"""The measure of an order: what it counts, and that it tells good from bad."""

import numpy as np
import pytest
import shuffle_quality
from src.data.cloud_store import open_store
from src.data.pack import pack
from src.errors import UserError

from tests.cloud_stores import SMALL, small_fields, small_store

ARGUMENTS = SMALL | {"window": (1, 4, 6), "train_stride": (1, 1, 1), "train_months": (0, 12)}


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    """Months that differ: a batch from one month is then a bad sample of all."""
    place = str(tmp_path_factory.mktemp("store") / "small.zarr")
    fields = small_fields()
    fields["a"] += 50 * np.sin(np.arange(24) * 2.0)[:, None, None].astype(np.float32)
    small_store(place, fields, chunk=(1, 10, 20))
    assert open_store(place)
    pack(place, (1, 10, 20))
    return place


def test_noise_and_requests_of_the_orders(url):
    arguments = ARGUMENTS | {"url": url, "packed": True, "batches_ahead": 1}
    means = shuffle_quality.sample_means(shuffle_quality.make({}, arguments))
    assert len(means) == 12 * 7 * 20
    found = {
        name: shuffle_quality.quality(
            shuffle_quality.make(shuffle_quality.ORDERS[name], arguments), means, 16
        )
        for name in shuffle_quality.ORDERS
    }
    assert found["random"]["noise"] == pytest.approx(1, abs=0.3)
    assert found["1 stream, buffer of 1"]["noise"] > 3
    assert found["4 streams, buffer of 4"]["noise"] < found["4 streams, buffer of 1"]["noise"]
    assert found["4 streams, 4 masks each"]["blocks"] < found["4 streams, buffer of 4"]["blocks"]
    assert found["4 streams, buffer of 4"]["requests"] == 12  # a month, once
    assert found["random"]["requests"] > 100
    rows = shuffle_quality.table(found, {name: [] for name in found}).splitlines()
    assert len(rows) == 1 + len(found)


def test_table_has_median_and_extremes():
    scores = {"random": [{"val_loss": loss} for loss in (0.3, 0.1, 0.2)]}
    row = shuffle_quality.table({"random": {"requests": 5, "blocks": 2.0, "noise": 1.0}}, scores)
    assert row.endswith("0.2000 (0.1000-0.3000)")


def test_bad_input(capsys):
    with pytest.raises(UserError, match="orders: sorted; allowed: random; 4 streams"):
        shuffle_quality.main(orders=["sorted"])
    with pytest.raises(UserError, match="epochs 0, seeds 2; allowed: from 1"):
        shuffle_quality.main(epochs=0)
    with pytest.raises(UserError, match="epochs: 3 is no multiple of repeat_augmentation 2"):
        shuffle_quality.trained({"repeat_augmentation": 2}, "config/config.yaml", 3, 0)


@pytest.mark.slow
def test_trains_with_an_order(tmp_path):
    """As the default run, with few samples."""
    config = tmp_path / "few.yaml"
    config.write_text("data: {dataset: {init_args: {train_stride: [6, 8, 40]}}}")
    order = {"streams": 2, "buffer": 1}
    assert 0 < shuffle_quality.trained(order, str(config), 1, 0)["val_loss"] < 2


def test_what_a_training_says_last_is_the_error(tmp_path, monkeypatch):
    training = tmp_path / "training"
    training.write_text("#!/bin/sh\nprintf 'a warning\\nerror: buffer: 0\\n' >&2; exit 1\n")
    training.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(training))
    with pytest.raises(UserError, match=r"^error: buffer: 0$"):
        shuffle_quality.trained({"buffer": 0}, "config/config.yaml", 1, 0)
