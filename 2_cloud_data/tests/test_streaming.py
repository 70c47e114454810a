"""The streamed samples and trainings are those of the data in memory, to the bit."""

import functools
import itertools
from unittest.mock import Mock

import dask
import numpy as np
import pytest
import yaml
from torch.testing import assert_close

from src.config import CHAPTER
from src.data.build import add_statistics, build
from src.data.checked_store import CheckedStore
from src.data.cube import cube_fields
from src.data.loaders import Loaders
from src.data.pytorch_dataset import OceanDataset, ocean_fields
from src.data.statistics import (
    compute_statistics,
    open_statistics,
    statistics_url,
)
from src.data.store import open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError
from tests import layouts
from tests.runs import call, rows, saved, train

MEMORY, CLOUD = f"-c={CHAPTER}/tests/ocean.yaml", f"-c={CHAPTER}/tests/cloud.yaml"
SAME = {"rtol": 0, "atol": 0, "equal_nan": True}


@pytest.mark.parametrize("dask", ["none", "single-threaded", "threads"])
def test_samples_are_those_in_memory(dask):
    """Also across the edge of the grid. Broken by: no second part in lazy_window."""
    memory, cloud = OceanDataset("train"), CloudDataset("train", dask=dask)
    indices = [0, 42, 43, 1000, len(memory) - 1]
    for index, (x, _) in zip(indices, cloud.__getitems__(indices), strict=True):
        assert_close(x, memory[index][0], **SAME)
        assert_close(cloud.climatology(index), memory.climatology(index), **SAME)
        for a, b in zip(
            cloud.coordinates(index), memory.coordinates(index), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_only_a_cluster_overrules_the_parameter():
    """Broken by: the scheduler of any dask configuration; no has_client in __getitems__."""
    dataset = CloudDataset("train", dask="threads")
    scheduler = Mock()
    with dask.config.set(scheduler=scheduler):
        dataset[0]
    scheduler.assert_not_called()
    # What a distributed.Client sets. There is none.
    with (
        dask.config.set(scheduler="dask.distributed"),
        pytest.raises(RuntimeError, match="no Client active"),
    ):
        dataset[0]


def test_statistics_are_those_in_memory():
    """Whatever the chunks. Broken by: mean of all months in compute_statistics."""
    memory = OceanDataset("train")
    result = compute_statistics(
        ocean_fields().chunk(time=7, lat=5, lon=100), ("2006-04", "2008-09")
    )
    np.testing.assert_array_equal(
        [result["mean"], result["std"]], [memory.mean, memory.std]
    )


def test_statistics_read_each_chunk_once(monkeypatch, tmp_path):
    """Of two levels, in chunks that end inside the grid. Broken by: chunks="auto"; no groupby."""
    shape = (30, 3, 181, 360)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    fields = cube_fields((30, 181, 360), (30, 181, 360), seed=0)
    fields = fields.expand_dims(level=[1000, 850, 500])[["salinity"]]
    fields["salinity"] = fields["salinity"].transpose("time", ...).copy(data=values)
    settings = {"salinity": {"chunks": (24, 3, 128, 256)}}
    url = str(tmp_path / "store.zarr")
    fields.to_zarr(url, encoding=settings, zarr_format=3)
    read = []
    get = CheckedStore.get

    async def counting(store, key, *arguments, **settings):
        read.append(key)
        return await get(store, key, *arguments, **settings)

    monkeypatch.setattr(CheckedStore, "get", counting)
    period = ("1900-01", "1901-04")
    add_statistics(url, period, to=str(tmp_path), levels=[500, 850])
    read = sorted(key for key in read if key.startswith("salinity/c"))
    places = itertools.product(range(2), [0], range(2), range(2))
    assert read == ["/".join(["salinity/c", *map(str, place)]) for place in places]
    there = open_statistics(open_store(statistics_url(str(tmp_path), period)))
    expected = values[:16, [2, 1]].mean((0, 2, 3), dtype=np.float64)
    np.testing.assert_array_equal(there["mean"], expected.astype(np.float32))


@pytest.mark.slow
def test_workers_read_the_same_batches():
    """Broken by: fork as the default in Loaders: a worker would wait for threads of its parent."""
    dataset = functools.partial(CloudDataset, train_stride=(6, 2, 40))
    loaders = [Loaders(dataset, 8, num_workers=number) for number in (0, 2)]
    batches = [[x for x, _ in loader.train_loader(lambda: 0)] for loader in loaders]
    assert_close(*batches, **SAME)


@pytest.mark.slow
def test_a_training_is_that_of_the_data_in_memory(monkeypatch, tmp_path):
    """With two machines, too: appendix/tests/test_machines.py. Broken by: another period's mean."""
    memory = train(monkeypatch, tmp_path / "memory", MEMORY)
    cloud = train(monkeypatch, tmp_path / "cloud", MEMORY, CLOUD)
    assert rows(memory) == rows(cloud)
    assert_close(
        *(saved(run, "last.ckpt")["state_dict"] for run in (memory, cloud)), **SAME
    )
    assert (memory / "summary.json").read_text() == (cloud / "summary.json").read_text()


def test_windows_avoid_months_without_values(tmp_path):
    """Nor does a region wrap around. Broken by: no has_values, or wrap_longitude = True."""
    fields = ocean_fields().isel(lon=slice(72))
    fields["surface_temperature"][20] = np.nan
    build(str(tmp_path), fields, (1, 18, 72), ("2006-04", "2008-09"))
    assert (tmp_path / "surface_temperature/c/20/0/0").exists()
    with pytest.raises(UserError, match="no data of 2010-10"):
        build(str(tmp_path), fields, (1, 18, 72), ("2006-04", "2010-10"))
    dataset = CloudDataset("train", str(tmp_path))
    places = [dataset.grid.slices(index) for index in range(len(dataset))]
    # They end before month 20.
    assert {place[0].start for place in places} == {*range(9)}
    assert max(place[2].stop for place in places) == 72


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dask", ["none", "threads"])
def test_any_layout_is_read_as_xarray_reads_it(tmp_path, zarr_format, packed, dask):
    """To the bit. Broken by: no transpose in lazy_window; levels in another order in select."""
    url = layouts.write_layout(tmp_path, zarr_format, packed)
    settings = layouts.SETTINGS | {"statistics_store": str(tmp_path), "dask": dask}
    dataset = CloudDataset("train", url, **settings)
    assert dataset.variables == ["temperature_850", "temperature_500", "salinity"]
    fields = [layouts.expected(url, name).values for name in dataset.variables]
    for index in (0, 7, len(dataset) - 1):
        x, _ = dataset[index]
        time, rows, _ = dataset.grid.slices(index)
        window = np.stack([field[time, rows] for field in fields])
        window = window[..., dataset.grid.columns(index)]
        np.testing.assert_array_equal(x, dataset.normalise(window))
    assert dataset.coordinates(0)[1][0] == 90  # from north to south, as in the store
    assert dataset.grid.has_degrees  # without a unit, its name says so


def test_statistics_are_of_their_store_and_all_variables(tmp_path):
    """In a folder for several stores. Broken by: no check_source; no `kept`; no grid_of."""
    urls = []
    for number, width in enumerate((36, 18)):
        urls.append(str(tmp_path / f"{number}.zarr"))
        fields = cube_fields((24, 18, width), (24, 18, width), seed=number)
        fields.to_zarr(urls[-1], zarr_format=3)
    to = str(tmp_path)
    period = ("1900-01", "1901-04")
    settings = {"train_period": period, "val_period": ("1901-09", "1901-12")}
    settings |= {"window": (4, 8, 8), "statistics_store": to}
    for name in ("salinity", "current_speed"):
        add_statistics(urls[0], period, [name], to)
    CloudDataset("train", urls[0], ["salinity", "current_speed"], **settings)
    with pytest.raises(UserError, match=r"statistics of .*0.zarr, and not of .*1.zarr"):
        CloudDataset("train", urls[1], ["salinity"], **settings)
    with pytest.raises(UserError, match=r"statistics of .*0.zarr are here"):
        add_statistics(urls[1], period, ["salinity"], to)

    fields = cube_fields((24, 18, 36), (24, 18, 36), seed=0)
    fields.isel(lat=slice(None, None, -1)).to_zarr(urls[0], zarr_format=3, mode="w")
    with pytest.raises(UserError, match="statistics of another grid"):
        CloudDataset("train", urls[0], ["salinity"], **settings)
    add_statistics(urls[0], period, ["salinity"], to)
    add_statistics(urls[0], period, ["current_speed"], to)
    before = CloudDataset("train", urls[0], ["salinity"], **settings)
    (fields + 1).isel(lat=slice(None, None, -1)).to_zarr(urls[0], mode="w")
    add_statistics(urls[0], period, ["salinity"], to, again=True)
    after = CloudDataset("train", urls[0], ["salinity"], **settings)
    assert after.mean == pytest.approx(before.mean + 1)
    CloudDataset("train", urls[0], ["current_speed"], **settings)  # still there


def test_levels_have_to_be_there(tmp_path):
    url = layouts.write_layout(tmp_path, 2, packed=False)
    settings = layouts.SETTINGS | {"statistics_store": str(tmp_path), "levels": [700]}
    with pytest.raises(UserError, match=r"levels: temperature .* \[1000, 850, 500\]"):
        CloudDataset("train", url, **settings)


@pytest.mark.slow
def test_weatherbench2_trains_on_a_store_of_its_layout(monkeypatch, tmp_path):
    """The file as it is, but for the address and the dates. Broken by: other dates in its head."""
    file = CHAPTER / "config" / "weatherbench2.yaml"
    dataset = yaml.safe_load(file.read_text())["data"]["dataset"]["init_args"]
    dates = f'--train_period "[{",".join(dataset["train_period"])}]"'
    assert dates in file.read_text()
    assert dates in (CHAPTER / "README.md").read_text()
    url = "s3://embedded/weatherbench2.zarr"
    names = {"temperature": "temperature", "surface": "2m_temperature"}
    store = layouts.fields((32, 64), names)
    store = store.transpose(*layouts.ORDERS[2], missing_dims="ignore")
    store.to_zarr(open_store(url, read_only=False), zarr_format=2, consolidated=True)
    (train_period, val_period) = layouts.PERIODS.values()
    add_statistics(url, train_period, list(store), str(tmp_path), levels=[500, 850])
    settings = {
        "url": url,
        "anonymous": "false",
        "statistics_store": tmp_path,
        "train_period": list(train_period),
        "val_period": list(val_period),
        "train_stride": [1, 1, 64],
    }
    words = [f"-c={file}", "--trainer.max_epochs=1"]
    words += [f"--data.dataset.{key}={value}" for key, value in settings.items()]
    words += [f"--trainer.output_dir={tmp_path}/output", "--trainer.accelerator=cpu"]
    call(monkeypatch, *words, "--trainer.wandb=disabled")
    scores = rows(tmp_path / "output" / "run_1")[-1]
    assert {"rmse_temperature_500", "rmse_2m_temperature"} < set(scores)
