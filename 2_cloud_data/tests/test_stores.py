"""How stores come to be: builds that are killed, a cluster, files, a service; and the scripts."""

import contextlib
import itertools
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import build_store
import chunk_size
import example_cloud_access
import numpy as np
import pytest
import usecase_API_access
import usecase_cloud_access
from distributed import LocalCluster
from zarr.storage import LocalStore

from src.data.build import build, build_ocean
from src.data.fields import open_fields
from src.data.pytorch_dataset import ocean_fields
from src.data.store import OCEAN, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.config import CHAPTER
from src.run.errors import UserError
from tests.layouts import SETTINGS, cube_fields
from tests.runs import call

CUBE = ["cube", "--months=24", "--height=18", "--width=36", "--chunk=[2,18,18]"]

# As the blog prints it.
TABLE = """
chunk_size minimal_chunks maximal_chunks minimal_bytes maximal_bytes 8x8 64 81 4096 5184
16x16 16 25 4096 6400 32x32 4 9 4096 9216 64x64 1 4 4096 16384 128x128 1 4 16384 65536
256x256 1 4 65536 262144 512x512 1 4 262144 1048576 1024x1024 1 4 1048576 4194304
"""


def files(folder: Path) -> dict[str, bytes]:
    """All files but the statistics, which have the store's address in them."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("statistics"):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@pytest.mark.slow
def test_a_build_on_a_cluster_survives_kills(monkeypatch, tmp_path):
    """Of a worker, and of the build itself. Broken by: no Client in main; no `finished`."""
    command = [sys.executable, "build_store.py", *CUBE]
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        build = subprocess.Popen([*command, f"--url={tmp_path}/killed"], cwd=CHAPTER)
        for region in (2, 8):
            while not (tmp_path / f"killed/regions/{region}").exists():
                assert build.poll() is None
                time.sleep(0.01)
            if region == 2:
                cluster.workers[0].process.process.kill()
        build.kill()
        build.wait()
        with pytest.raises(UserError, match="no statistics"):
            CloudDataset("train", f"{tmp_path}/killed", **SETTINGS)
        subprocess.run([*command, f"--url={tmp_path}/killed"], cwd=CHAPTER, check=True)
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS")
    call(monkeypatch, *CUBE, f"--url={tmp_path}/whole", script=build_store)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


@pytest.mark.slow
def test_a_build_goes_on_after_any_write(monkeypatch, tmp_path):
    """And writes a region again whose marker is deleted. Until then nobody takes it for whole.

    Broken by: made_of written after the arrays; a marker written before its region.
    """
    fields = cube_fields((24, 8, 8), (12, 8, 8))[["salinity"]]
    arguments = (fields, (12, 8, 8), SETTINGS["train_period"])
    build(str(tmp_path / "whole"), *arguments)
    whole = files(tmp_path / "whole")
    write = LocalStore.set

    async def write_until_killed(store, *arguments):
        nonlocal writes_left
        writes_left -= 1
        if writes_left < 0:
            raise InterruptedError
        await write(store, *arguments)

    for number in itertools.count():
        url = str(tmp_path / str(number))
        writes_left = number
        with monkeypatch.context() as patch, contextlib.suppress(InterruptedError):
            patch.setattr(LocalStore, "set", write_until_killed)
            build(url, *arguments)
        if writes_left >= 0:  # this one was not killed
            break
        with pytest.raises(UserError):
            CloudDataset("train", url, **SETTINGS)[0]
        build(url, *arguments)
        assert files(Path(url)) == whole
    assert number > 10

    (tmp_path / "0/salinity/c/1/0/0").unlink()
    (tmp_path / "0/regions/12").unlink()
    build(f"{tmp_path}/0", *arguments)
    assert files(tmp_path / "0") == whole


def test_a_store_of_netcdf_files(monkeypatch, tmp_path):
    """With ERA5's axes, in days since a date.

    Broken by: no transpose in build; no decode_times, or no join, in open_files.
    """
    fields = ocean_fields().rename(lat="latitude", lon="longitude", time="valid_time")
    fields = fields.transpose("latitude", ...).expand_dims(zlev=[0.0])
    fields["surface_temperature"].attrs["units"] = "days since 1850-01-01"
    fields.isel(valid_time=slice(30)).to_netcdf(tmp_path / "a.nc")
    fields.isel(valid_time=slice(30, 54)).to_netcdf(tmp_path / "b.nc")
    words = ["netcdf", f"--files=[{tmp_path}/*.nc]", f"--url={tmp_path}/store"]
    words += ["--train_period=[2006-04,2008-09]", "--chunk=[12,9,99]"]
    words += ["--variables=[surface_temperature]"]
    call(monkeypatch, *words, script=build_store)
    build_ocean()
    read = [CloudDataset("train", url)[7][0] for url in (f"{tmp_path}/store", OCEAN)]
    np.testing.assert_array_equal(*read)

    moved = fields.assign_coords(latitude=fields.latitude + 1e-5)
    moved.isel(valid_time=slice(30, 54)).to_netcdf(tmp_path / "b.nc")
    with pytest.raises(UserError, match="latitude"):
        call(monkeypatch, *words, script=build_store)
    (tmp_path / "b.nc").unlink()
    with pytest.raises(UserError, match="something else is here"):
        call(monkeypatch, *words, script=build_store)


def test_chunk_sizes_are_those_of_the_blog(monkeypatch, tmp_path, capsys):
    """And the mean is that of all starts. Broken by: w / c for (w - 1) / c in mean or maximal."""
    monkeypatch.setattr(chunk_size, "CHAPTER", tmp_path)
    chunk_size.main()
    lines = capsys.readouterr().out.splitlines()[:9]
    assert [word for line in lines for word in line.split()[:5]] == TABLE.split()
    assert chunk_size.cost((12,), 2.0, 4)["mean_chunks"] == (13 * 1 + 11 * 2) / 24


def test_access_scripts_run(capsys):
    """Broken by: one request for all ranges in cat_ranges."""
    example_cloud_access.main()
    usecase_cloud_access.main()
    assert "in chunks of {'time': 54, 'lat': 18, 'lon': 72}" in capsys.readouterr().out


def test_a_service_is_asked_again(monkeypatch, tmp_path):
    """And only for the period. Broken by: no retry; no sel in usecase_API_access."""
    fields = ocean_fields().rename(lat="latitude", lon="longitude")
    service = Mock(**{"open_dataset.side_effect": [OSError, fields]})
    monkeypatch.setitem(sys.modules, "copernicusmarine", service)
    monkeypatch.setattr(usecase_API_access.fetch.retry, "sleep", lambda seconds: None)
    days = ("2008-01-01", "2008-10-31")
    usecase_API_access.fetch(str(tmp_path), *days, "surface_temperature")
    (written,) = open_fields(open_store(str(tmp_path)))[0].values()
    expected = fields["surface_temperature"].sel(time=slice(*days))
    np.testing.assert_array_equal(written, expected)
