"""Stores are whole or not finished; large ones are built region by region, also by a cluster."""

import subprocess
import sys
import time

import build_store
import dask
import numpy as np
import pytest
import xarray as xr
from distributed import Client, LocalCluster
from src.config import CHAPTER
from src.data.build import ocean_fields
from src.data.cube import block
from src.data.statistics import compute_statistics
from src.data.store import open_fields, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError

from tests.runs import call

SHAPE, CHUNK = (24, 18, 36), (2, 9, 18)
CUBE = ["cube", "--months=24", "--height=18", "--width=36", "--chunk=[2,9,18]"]


def contents(url: str) -> xr.Dataset:
    fields = open_fields(open_store(url)).load()
    statistics = open_fields(open_store(f"{url}/statistics/0-19")).load()
    return fields.merge(statistics.rename(time="t", lat="y", lon="x"), compat="no_conflicts")


def test_the_cube_is_a_function_of_place_and_seed():
    """Broken by: np.sin of a part of an axis in waves()."""
    place = (slice(3, 7), slice(5, 12), slice(10, 33))
    whole = block("salinity", SHAPE, 0, tuple(slice(0, n) for n in SHAPE))
    np.testing.assert_array_equal(block("salinity", SHAPE, 0, place), whole[place])
    assert 0.1 < np.isnan(whole).mean() < 0.6
    assert not np.array_equal(block("salinity", SHAPE, 1, place), whole[place], equal_nan=True)


def test_statistics_are_those_of_numpy():
    """Whatever the chunks. Broken by: mean of all months in compute_statistics."""
    fields = ocean_fields()
    values = fields["surface_temperature"].values[:30].astype("float64")
    for chunks in ((54, 18, 432), (7, 5, 100)):
        lazy = fields.chunk(dict(zip(("time", "lat", "lon"), chunks, strict=True)))
        result = compute_statistics(lazy, (0, 30))
        expected = np.array([np.nanmean(values), np.nanstd(values)], "float32")
        np.testing.assert_array_equal([result["mean"][0], result["std"][0]], expected)


@pytest.mark.slow
def test_a_killed_build_is_not_finished_and_goes_on(monkeypatch, tmp_path):
    """Broken by: regions_left written before the region."""
    whole, broken = str(tmp_path / "whole"), str(tmp_path / "broken")
    call(monkeypatch, *CUBE, f"--url={whole}", script=build_store)
    process = subprocess.Popen(
        [sys.executable, "build_store.py", *CUBE, f"--url={broken}"], cwd=CHAPTER
    )
    while not (tmp_path / "broken/salinity/c/3").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    with pytest.raises(UserError, match="is not finished"):
        CloudDataset("train", broken)
    call(monkeypatch, *CUBE, f"--url={broken}", script=build_store)
    xr.testing.assert_identical(contents(whole), contents(broken))
    with pytest.raises(UserError, match="something else is here"):
        call(monkeypatch, *CUBE, "--seed=1", f"--url={broken}", script=build_store)


@pytest.mark.slow
def test_a_cluster_builds_the_same_store(monkeypatch, tmp_path):
    """Where DASK_SCHEDULER_ADDRESS is set. Broken by: no Client in build_store.main()."""
    threads = str(tmp_path / "threads")
    call(monkeypatch, *CUBE, f"--url={threads}", script=build_store)
    settings = {"n_workers": 1, "host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(**settings) as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        with dask.config.set(scheduler_address=cluster.scheduler_address):
            call(monkeypatch, *CUBE, "--url=s3://embedded/cluster.zarr", script=build_store)
        with Client(cluster) as client:
            tasks = client.run_on_scheduler(
                lambda dask_scheduler: dask_scheduler.transition_counter
            )
    assert tasks > 24
    xr.testing.assert_identical(contents(threads), contents("s3://embedded/cluster.zarr"))
