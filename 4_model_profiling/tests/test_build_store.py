"""The command that builds stores: NetCDF files become one, and wrong arguments none."""

import sys

import build_store
import iris_sample_data
import numpy as np
import pytest
import xarray as xr
from src.errors import UserError

from tests.cloud_stores import dataset, small_fields, small_store


def run(monkeypatch, *arguments: str) -> None:
    """``python build_store.py`` in this process."""
    monkeypatch.setattr(sys, "argv", ["build_store.py", *arguments])
    assert build_store.main() == 0


@pytest.fixture
def netcdf(tmp_path) -> list[str]:
    """The command that joins two files, one after the other in time."""
    fields = small_fields()
    for number, part in enumerate((slice(0, 10), slice(10, 24))):
        fields.isel(time=part).to_netcdf(tmp_path / f"{number}.nc")
    files = f"--files=[{tmp_path / '0.nc'},{tmp_path / '1.nc'}]"
    months = "--train_months=[0,12]"
    return ["netcdf", files, f"--url={tmp_path / 'store'}", "--variables=[a,b]", months]


def test_netcdf_files_move_to_zarr(monkeypatch, tmp_path, netcdf, capsys):
    run(monkeypatch, *netcdf, "--chunk=[5,4,7]")
    printed = capsys.readouterr().out
    assert "0.000 GB before compression, in 90 objects" in printed
    assert f"finished: {tmp_path / 'store'}" in printed
    small_store(str(tmp_path / "direct"))
    ours, theirs = dataset(str(tmp_path / "store")), dataset(str(tmp_path / "direct"))
    assert ours[5][0].nan_to_num(1).equal(theirs[5][0].nan_to_num(1))


def test_a_file_with_blocks_and_coordinates_of_its_own(monkeypatch, tmp_path, capsys):
    """Met Office's sample, which README.md moves: a month a block, and a coordinate of no axis."""
    file, url = f"{iris_sample_data.path}/ostia_monthly.nc", str(tmp_path / "store")
    names, months = "--variables=[surface_temperature]", "--train_months=[0,30]"
    run(monkeypatch, "netcdf", f"--files=[{file}]", f"--url={url}", names, months)
    assert "in 35 objects" in capsys.readouterr().out
    moved = xr.open_zarr(url, consolidated=False)
    assert set(moved.coords) == {"time", "lat", "lon"}
    with xr.open_dataset(file) as fields:
        values = fields["surface_temperature"].values
    np.testing.assert_array_equal(moved["surface_temperature"].values, values)
    assert len(dataset(url, train_months=(0, 30), val_months=(42, 54)))


WRONG = {
    "no file": (["--files=[nowhere.nc]"], "files: cannot read them together: "),
    "no variable": (["--variables=[x]"], "files: cannot read them together: "),
    "no chunk": (["--chunk=[0,4,7]"], r"chunk, shard: \[0, 4, 7\], None; allowed: from 1"),
    "shard": (["--chunk=[5,4,7]", "--shard=[9,8,7]"], r"\[9, 8, 7\] is no multiple of the chunk"),
    "key": (["--chunks=[5,4,7]"], "unrecognized arguments: --chunks"),
    "type": (["--threads=many"], '"threads": Expected a <class .int.>'),
    "months": (["--train_months=[12,0]"], r"train_months: \[12, 0\] is not a period"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_one_line(monkeypatch, tmp_path, netcdf, case):
    """Before anything is written."""
    arguments, message = WRONG[case]
    with pytest.raises(UserError, match=message) as caught:
        run(monkeypatch, *netcdf, *arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_a_cube_without_months_is_refused(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"months, height, width: \[0, 180, 360\]"):
        run(monkeypatch, "cube", f"--url={tmp_path / 'c'}", "--months=0")
