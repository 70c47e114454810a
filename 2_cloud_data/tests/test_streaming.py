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
from tests.runs import assert_same_run, call, rows, train


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


@pytest.mark.parametrize("dask", ["none", "threads"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_any_layout_is_read_as_xarray_reads_it(tmp_path, zarr_format, dask):
    """Across the edge, too. Broken by: no transpose, or no columns, in lazy_window."""
    settings = layouts.write_public(tmp_path, zarr_format, packed=True)
    dataset = CloudDataset("train", **settings, dask=dask)
    assert dataset.variables == ["temperature_850", "temperature_500", "salinity"]
    store = xr.open_zarr(settings["url"])
    store = store.transpose("time", "level", "latitude", "longitude")
    upper = store["temperature"].values[:, [1, 2]].swapaxes(0, 1)
    fields = np.stack([*upper, store["salinity"].values])
    for index in (0, 5, len(dataset) - 1):
        time, rows, _ = dataset.grid.slices(index)
        window = fields[:, time, rows][..., dataset.grid.columns(index)]
        restored = (
            np.moveaxis(dataset[index][0].numpy(), 0, -1) * dataset.std + dataset.mean
        )
        np.testing.assert_allclose(np.moveaxis(restored, -1, 0), window, rtol=1e-5)


@pytest.mark.slow
def test_weatherbench2_trains_on_a_store_of_its_layout(monkeypatch, tmp_path):
    """The file as it is, but for address, dates and rights. Broken by: its keys."""
    file = CHAPTER / "config" / "weatherbench2.yaml"
    names = yaml.safe_load(file.read_text())["data"]["dataset"]["init_args"]
    url = "s3://embedded/weatherbench2.zarr"
    store = layouts.public_fields(2, names["variables"], shape=(32, 64))
    store.to_zarr(open_store(url, read_only=False), zarr_format=2)
    periods = {
        "train_period": ["1900-01-01", "1900-01-01"],
        "val_period": ["1900-01-02T04", "1900-01-02T11"],
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
    assert "rmse_temperature_500" in rows(run)[-1]


def test_statistics_go_on_where_they_were_stopped(monkeypatch, tmp_path):
    """Broken by: no `continue` in add_statistics; no `is_finished`."""
    settings = layouts.SETTINGS | {"url": layouts.build_small()}
    to = settings | {"statistics_store": str(tmp_path)}
    parts = []

    def interrupted(fields, sums_of=statistics.sums_of):
        parts.append(fields)
        if len(parts) == 2:
            raise InterruptedError
        return sums_of(fields)

    monkeypatch.setattr(statistics, "VALUES_AT_A_TIME", 1)
    monkeypatch.setattr(statistics, "sums_of", interrupted)
    arguments = [layouts.URL, settings["train_period"], None, None, str(tmp_path)]
    with pytest.raises(InterruptedError):
        statistics.add_statistics(*arguments)
    with pytest.raises(UserError, match="none that are finished"):
        CloudDataset("train", **to)
    statistics.add_statistics(*arguments)
    assert len(parts) == 3
    one, other = CloudDataset("train", **settings), CloudDataset("train", **to)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-6)
