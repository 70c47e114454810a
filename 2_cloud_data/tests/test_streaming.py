"""The streamed samples and trainings are those of the data in memory, to the bit."""

import numpy as np
import pytest
import xarray as xr
import yaml

from src.data import statistics
from src.data.build import build_ocean
from src.data.store import open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.config import CHAPTER
from src.run.errors import UserError
from tests import layouts
from tests.runs import assert_same_run, call, train


@pytest.mark.slow
def test_a_training_is_that_of_the_data_in_memory(monkeypatch, tmp_path):
    """Stopped, and resumed from a copy of the store, with a worker.

    Broken by: fork in Loaders; no prepare_data; no FREE_ON_RESUME; the mean of all months.
    """
    settings = [f"-c={CHAPTER}/tests/ocean.yaml", "--trainer.max_epochs=1"]
    memory = train(monkeypatch, tmp_path / "memory", *settings)
    settings += [f"-c={CHAPTER}/tests/cloud.yaml", "--data.num_workers=1"]
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path / "cloud", *settings, "--trainer.max_steps=9")
    run = tmp_path / "cloud" / "run_1"
    build_ocean(str(tmp_path / "copy"))
    other = f"--data.dataset.url={tmp_path}/copy"
    call(monkeypatch, f"--resume={run}", "--trainer.max_steps=-1", other)
    assert_same_run(memory, run)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_any_layout_is_read_as_xarray_reads_it(tmp_path, zarr_format):
    """To the bit, across the edge, too. Broken by: no transpose, or columns, in lazy_window."""
    settings = layouts.write_public(tmp_path, zarr_format, packed=True)
    store = xr.open_zarr(settings["url"])
    store = store.transpose("time", "latitude", "longitude", "level")
    layers = {f"temperature_{n}": store["temperature"].sel(level=n) for n in (850, 500)}
    layers["salinity"] = store["salinity"]
    fields = [layer.values.astype("float32") for layer in layers.values()]
    for dask in ("none", "threads"):
        dataset = CloudDataset("train", **settings, dask=dask)
        assert dataset.variables == list(layers)
        for index in (0, 5, len(dataset) - 1):
            time, rows, _ = dataset.grid.slices(index)
            columns = dataset.grid.columns(index)
            window = np.stack([field[time, rows][..., columns] for field in fields])
            window = (window - dataset.mean[:, None, None, None]).astype("float32")
            window /= dataset.std[:, None, None, None]
            np.testing.assert_array_equal(dataset[index][0], window)
    training = np.stack(fields)[:, :21].astype(float)
    for name, value in (("mean", np.nanmean), ("std", np.nanstd)):
        expected = value(training, axis=(1, 2, 3))
        np.testing.assert_allclose(getattr(dataset, name), expected, rtol=1e-5)
    with pytest.raises(UserError, match="name some of them"):
        CloudDataset("train", **settings | {"levels": [1]})


@pytest.mark.slow
def test_weatherbench2_trains_on_a_store_of_its_layout(monkeypatch, tmp_path):
    """The file as it is, but for address, dates and rights. Broken by: its keys."""
    file = CHAPTER / "config" / "weatherbench2.yaml"
    names = yaml.safe_load(file.read_text())["data"]["dataset"]["init_args"]
    url = "s3://embedded/weatherbench2.zarr"
    store = layouts.public_fields(2, names["variables"], shape=(32, 64))
    target = open_store(url, read_only=False)
    store.to_zarr(target, zarr_format=2, consolidated=True)
    periods = {
        "train_period": ["1900-01-01", "1900-01-01"],
        "val_period": ["1900-01-02T04", "1900-01-02T11"],
        "test_period": ["1900-01-02T16", "1900-01-02T23"],
    }
    command = [names["variables"], names["levels"], str(tmp_path)]
    statistics.add_statistics(url, periods["train_period"], *command)
    settings = {
        "url": url,
        "anonymous": "false",
        "statistics_store": tmp_path,
        **periods,
    }
    words = [f"-c={file}", "--trainer.max_epochs=1", "--data.batch_size=2"]
    words += [f"--data.dataset.{key}={value}" for key, value in settings.items()]
    run = train(monkeypatch, tmp_path, *words)
    scores = yaml.safe_load((run / "summary.json").read_text())["test"]
    assert "rmse_temperature_500" in scores["masked autoencoder"]


def test_statistics_go_on_where_they_were_stopped(monkeypatch, tmp_path):
    """To the same bits. Broken by: no `continue` in add_statistics."""
    monkeypatch.setattr(statistics, "VALUES_AT_A_TIME", 1)
    url = layouts.build_small(str(tmp_path / "a.zarr"))
    period = ("1900-03", "1901-10")
    statistics.add_statistics(url, period)  # whole, in the store
    place = open_store(str(tmp_path))
    wanted = [["salinity"], period, slice(2, 22)]

    parts = []

    def interrupted(fields, sums_of=statistics.sums_of):
        parts.append(fields)
        if len(parts) == 2:
            raise InterruptedError
        return sums_of(fields)

    monkeypatch.setattr(statistics, "sums_of", interrupted)
    with pytest.raises(InterruptedError):
        statistics.add_statistics(url, period, to=str(tmp_path))
    with pytest.raises(UserError, match="none that are finished"):
        statistics.load_statistics(place, url, *wanted)
    statistics.add_statistics(url, period, to=str(tmp_path))
    assert len(parts) == 3
    found = statistics.load_statistics(place, url, *wanted)
    expected = statistics.load_statistics(open_store(url), url, *wanted)
    np.testing.assert_array_equal(found, expected)
