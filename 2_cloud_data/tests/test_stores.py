"""How stores come to be: built whole or not finished, by a cluster, from a service; chunks."""

import os
import random
import subprocess
import sys
import time
from unittest.mock import MagicMock, Mock

import build_store
import chunk_size
import example_cloud_access
import numpy as np
import pytest
import usecase_API_access
import usecase_cloud_access
from zarr.core.sync import sync
from zarr.storage import LocalStore

from src.data.build import OCEAN, build
from src.data.check import damage
from src.data.cube import cube_fields
from src.data.pytorch_dataset import ocean_fields
from src.data.store import open_fields, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.config import CHAPTER
from src.run.errors import UserError
from tests.runs import call

TRAIN = ("1900-01", "1901-04")
CUBE = ["cube", "--months=24", "--height=18", "--width=36", "--chunk=[2,9,18]", "--url"]

# As the blog prints it.
TABLE = """
chunk_size minimal_chunks maximal_chunks minimal_bytes maximal_bytes 8x8 64 81 4096 5184
16x16 16 25 4096 6400 32x32 4 9 4096 9216 64x64 1 4 4096 16384 128x128 1 4 16384 65536
256x256 1 4 65536 262144 512x512 1 4 262144 1048576 1024x1024 1 4 1048576 4194304
"""


@pytest.mark.slow
def test_a_killed_build_goes_on(monkeypatch, tmp_path):
    """Also on a cluster, a real one in test_machines.py. Broken by: no Client in main()."""
    whole, killed = str(tmp_path / "whole"), str(tmp_path / "killed")
    command = [sys.executable, "build_store.py", *CUBE, killed]
    process = subprocess.Popen(command, cwd=CHAPTER)
    while not (tmp_path / "killed/salinity/c/3").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    with pytest.raises(UserError, match="is not finished"):
        CloudDataset("train", killed)
    call(monkeypatch, *CUBE, whole, script=build_store)
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://192.0.2.1:8786")
    monkeypatch.setattr(build_store, "Client", client := MagicMock())
    call(monkeypatch, *CUBE, killed, script=build_store)
    client.assert_called_once()
    for path in ("", "/statistics/1900-01_1901-07/salinity"):
        a, b = (open_fields(open_store(f"{url}{path}")) for url in (whole, killed))
        assert a.drop_attrs(deep=False).identical(b.drop_attrs(deep=False))


@pytest.mark.slow
def test_a_build_goes_on_after_any_write(monkeypatch, tmp_path):
    """And after all objects were deleted. Broken by: made_of written after the arrays.

    Until then nobody takes it for whole. Broken by: regions_left written before the region.
    """
    fields = cube_fields((24, 8, 8), (12, 8, 8))[["salinity"]]
    arguments = (fields, (12, 8, 8), TRAIN)
    build(str(tmp_path / "whole"), *arguments)
    expected = open_fields(open_store(str(tmp_path / "whole")))
    settings = {"train_period": TRAIN, "val_period": ("1901-09", "1901-12")}
    settings |= {"window": (4, 8, 8), "dask": "none"}
    write = LocalStore.set

    async def write_until_killed(store, *arguments):
        nonlocal writes_left
        writes_left -= 1
        if writes_left < 0:
            raise InterruptedError
        await write(store, *arguments)

    # 35 writes; 14 and 16 are the values, and a count of what is left follows each.
    for number in {0, 1, 2, 15, 17, *random.sample(range(3, 35), 3)}:
        url = str(tmp_path / str(number))
        writes_left = number
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "set", write_until_killed)
            with pytest.raises(InterruptedError):
                build(url, *arguments)
        with pytest.raises(UserError):
            CloudDataset("train", url, **settings)[0]
        build(url, *arguments)
        assert open_fields(open_store(url)).identical(expected)
        assert damage(url) == []

    url = "s3://embedded/deleted.zarr"
    build(url, *arguments)
    sync(open_store(url, read_only=False).delete_dir(""))
    build(url, *arguments)
    assert open_fields(open_store(url)).identical(expected)


def test_a_store_of_netcdf_files(monkeypatch, tmp_path):
    """Two, with ERA5's names and axes. Broken by: no transpose, named_axes, version or join.

    The field is in days since a date. Broken by: no decode_times or decode_timedelta in open_files.
    There is another lat, as on a curved grid. Broken by: named_axes before reset_coords.
    """
    fields = (
        ocean_fields()
        .assign_coords(expver=("time", ["0001"] * 54), number=0)
        .rename(lat="latitude", lon="longitude", time="valid_time")
        .transpose("latitude", ...)
        .assign_coords(lat=(("latitude", "longitude"), np.zeros((18, 432))))
    )
    # One variable with levels, of which one is the field of the store OCEAN.
    fields = fields.expand_dims(pressure_level=[500.0, 850.0], zlev=[0.0])
    fields["surface_temperature"].attrs["units"] = "days since 1850-01-01"
    fields.isel(valid_time=slice(30)).to_netcdf(tmp_path / "a.nc")
    fields.isel(valid_time=slice(30, 54)).to_netcdf(tmp_path / "b.nc")
    words = ["netcdf", f"--files=[{tmp_path}/*.nc]", f"--url={tmp_path}/store"]
    words += ["--train_period=[2006-04,2008-09]", "--chunk=[12,9,99]"]
    words += ["--variables=[surface_temperature]", "--levels=[850]"]
    call(monkeypatch, *words, script=build_store)
    read = [CloudDataset("train", url)[7][0] for url in (f"{tmp_path}/store", OCEAN)]
    np.testing.assert_array_equal(*read)
    os.utime(tmp_path / "a.nc", (0, 0))  # as if it had been corrected
    with pytest.raises(UserError, match="something else is here"):
        call(monkeypatch, *words, script=build_store)

    # Without its source, a damaged store stays what it is.
    (tmp_path / "store/surface_temperature_850/c/4/1/4").unlink()
    repair = ["check", f"--url={tmp_path}/store", "--repair=true"]
    with pytest.raises(UserError, match="something else is here"):
        call(monkeypatch, *repair, script=build_store)
    CloudDataset("train", f"{tmp_path}/store")[7]

    # Latitudes that differ in the last digit.
    moved = fields.assign_coords(latitude=fields.latitude + 1e-5)
    moved.isel(valid_time=slice(30, 54)).to_netcdf(tmp_path / "b.nc")
    with pytest.raises(UserError, match=r"--files: .*latitude"):
        call(monkeypatch, *words, script=build_store)


def test_chunk_sizes_are_those_of_the_blog(monkeypatch, tmp_path, capsys):
    """And the mean is that of all starts. Broken by: w / c for (w - 1) / c in mean or maximal."""
    monkeypatch.setattr(chunk_size, "CHAPTER", tmp_path)
    chunk_size.main()
    assert capsys.readouterr().out.split()[:45] == TABLE.split()
    assert (tmp_path / "output" / "chunk_size" / "chunk_size.png").exists()
    touched = [len({i // 24 for i in range(start, start + 12)}) for start in range(24)]
    assert chunk_size.cost((12,), 2.0, 4)["mean_chunks"] == pytest.approx(
        np.mean(touched)
    )
    assert chunk_size.cost((1,), 2.0, 4)["maximal_chunks"] == 1


def test_access_scripts_run(capsys):
    example_cloud_access.main()
    usecase_cloud_access.main()
    assert "in chunks of (54, 18, 72)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["time", "valid_time"])
def test_netcdf_files_are_read_in_steps_of_a_chunk(tmp_path, name):
    """Not whole files, for each region. Broken by: chunks={} in open_files."""
    ocean_fields().rename(time=name).to_netcdf(tmp_path / "a.nc")
    with build_store.open_files([str(tmp_path / "a.nc")], 12, []) as fields:
        assert fields["surface_temperature"].chunksizes[name] == (12, 12, 12, 12, 6)


def test_a_service_is_asked_again(monkeypatch, tmp_path):
    """And only for the period. Broken by: no retry; no sel in usecase_API_access."""
    fields = ocean_fields().rename(lat="latitude", lon="longitude")
    stand_in = Mock(**{"open_dataset.side_effect": [OSError, OSError, fields]})
    monkeypatch.setitem(sys.modules, "stand_in", stand_in)
    monkeypatch.setattr(usecase_API_access.fetch.retry, "sleep", lambda seconds: None)
    words = ["--service=stand_in:open_dataset", "--variable=surface_temperature"]
    words += ["--start=2008-01-01", "--end=2008-10-31", f"--url={tmp_path}"]
    call(monkeypatch, *words, script=usecase_API_access)
    (expected,) = fields.sel(time=slice("2008-01", "2008-10")).values()
    (written,) = open_fields(open_store(str(tmp_path))).values()
    np.testing.assert_array_equal(written, expected)
