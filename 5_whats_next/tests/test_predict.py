"""A run's prediction of the fields that it was trained on, as one file."""

from pathlib import Path

import build_store
import numpy as np
import pandas as pd
import predict
import pytest
import xarray as xr
import yaml

from src.run.errors import UserError
from tests.runs import TINY, call

TRAINING = ("2000-01-01", "2000-01-24")
PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0}


def fields(height: int, width: int) -> xr.Dataset:
    """40 days from north to south: land in the west, and a gap in one of the variables."""
    generator = np.random.default_rng(0)
    shape = (40, height, width)
    # Much rain, and very little: normalised and back, small values lose their last digits.
    rain = generator.exponential(5, shape).round(2)
    rain[:, 7, 9] = np.nan
    values = {"sst": generator.normal(280, 5, shape).round(2), "rain": rain}
    units = {"sst": "K", "rain": "mm"}
    axes = {
        "time": pd.date_range("2000-01-01", periods=40),
        "lat": ("lat", np.linspace(60, 50, height), {"units": "degrees_north"}),
        "lon": ("lon", np.linspace(-10, 9, width), {"units": "degrees_east"}),
    }
    result = xr.Dataset(coords=axes)
    for name, field in values.items():
        field[:, :, :5] = np.nan
        attributes = {"units": units[name], "cell_methods": "time: mean"}
        result[name] = (("time", "lat", "lon"), field, attributes)
        result[name].encoding = PACKED | {"_FillValue": -32768}
    return result


def trained(folder: Path, url: Path) -> Path:
    """The folder of a tiny run on a store."""
    dataset = {
        "url": str(url),
        "window": [4, 8, 8],
        "train_stride": [4, 4, 4],
        "val_stride": [4, 8, 8],
        "train_period": list(TRAINING),
        "val_period": ["2000-02-01", "2000-02-08"],
    }
    config = yaml.safe_load(Path(TINY.removeprefix("-c=")).read_text())
    class_path = "src.data.fast_dataset.FastDataset"
    config["data"]["dataset"] = {"class_path": class_path, "init_args": dataset}
    config["trainer"] |= {"output_dir": str(folder), "cloud_storage_path": "none"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert not call(monkeypatch, f"-c={folder}/config.yaml")
    return folder / "run_1"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """On a store of packed NetCDF files, whose grid and validation a window divides."""
    folder = tmp_path_factory.mktemp("netcdf")
    fields(16, 24).to_netcdf(folder / "a.nc")
    files = [str(folder / "a.nc")]
    url = folder / "store.zarr"
    build_store.netcdf(files, ["sst", "rain"], str(url), TRAINING, (10, 16, 24))
    return trained(folder, url)


def test_shown_values_are_the_source_and_hidden_ones_the_prediction(run):
    """To the bit, on the grid of the store.

    Broken by: normalised values turned back for shown ones; sorted latitudes; no `~x.isnan()`;
    no attributes; untrained weights; other masks.
    """
    predict.main(str(run), picture="rain", date="2000-02-03")
    assert (run / "prediction_rain_2000-02-03.png").stat().st_size > 20_000
    output = xr.load_dataset(run / "prediction.nc")
    source = xr.load_dataset(run.parent / "a.nc").sel(time=output["time"])
    source = source.astype("float32")
    assert {*output} == {"rain", "sst", "hidden"}

    hidden = output["hidden"] == 1
    assert 0.7 < hidden.where(source["sst"].notnull()).mean() < 0.8
    best = pd.read_csv(run / "metrics.csv").sort_values("val_loss").iloc[0]
    for name in ("sst", "rain"):
        assert output[name].dtype == np.float32
        shown = output[name].where(~hidden)
        xr.testing.assert_equal(shown, source[name].where(~hidden))
        xr.testing.assert_equal(output[name].isnull(), source[name].isnull())
        assert source[name].attrs.items() <= output[name].attrs.items()
        # The training has scored the same windows, with the same model and masks.
        error = (output[name] - source[name]).where(hidden).astype("float64")
        weights = np.cos(np.deg2rad(source["lat"]))
        rmse = float((error**2).weighted(weights).mean() ** 0.5)
        assert rmse == pytest.approx(best[f"rmse_{name}"], rel=1e-4)
    for axis in source.coords:
        assert source[axis].attrs.items() <= output[axis].attrs.items()


def test_the_last_window_ends_at_the_edge(run, tmp_path):
    """Also in Zarr. Broken by: windows that leave out the edge."""
    period = ("2000-01-24", "2000-02-01")
    predict.main(str(run), period=period, to=str(tmp_path / "out.zarr"))
    with xr.open_zarr(tmp_path / "out.zarr") as output:
        assert output.sizes["time"] == 9
        assert output["hidden"].any(["lat", "lon"]).all()


def test_another_store_has_the_trainings_mean(run, tmp_path):
    """Broken by: its own mean; no comparison of units, or of the grid."""
    later = fields(16, 24).isel(time=slice(30, 40))
    later.to_netcdf(tmp_path / "b.nc")
    url = f"{tmp_path}/later.zarr"
    period = ("2000-02-07", "2000-02-09")
    build_store.netcdf([f"{tmp_path}/b.nc"], ["rain", "sst"], url, period, (10, 16, 24))
    outputs = []
    for name, other in (("own", None), ("other", url)):
        predict.main(str(run), to=f"{tmp_path}/{name}.nc", url=other)
        outputs.append(xr.load_dataset(tmp_path / f"{name}.nc"))
    xr.testing.assert_equal(*outputs)

    gap = f"{tmp_path}/gap.zarr"
    later.isel(time=[0, 1, 2, 3, 5, 6, 7, 8, 9]).to_zarr(gap)
    with pytest.raises(UserError, match="2000-02-03"):
        predict.main(str(run), to=f"{tmp_path}/gap.nc", url=gap)

    dataset, _, settings = predict.open_run(run, "best")
    dataset.lazy_fields = dataset.lazy_fields.isel(lat=slice(8, 16))
    with pytest.raises(UserError, match="another lat"):
        predict.fields_of(dataset, settings, url)
    dataset.units = ["inches", "K"]
    with pytest.raises(UserError, match="no rain in inches"):
        predict.fields_of(dataset, settings, url)


def test_an_output_is_whole_or_not_there(run, tmp_path, monkeypatch):
    """Also after an error.

    Broken by: no temporary name; no `finally`; an output that is replaced; no look at the
    memory.
    """
    target = tmp_path / "out.nc"

    def interrupted(output, path, **settings):
        path.write_text("half of it")
        raise InterruptedError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(xr.Dataset, "to_netcdf", interrupted)
        with pytest.raises(InterruptedError):
            predict.main(str(run), to=str(target))
    assert not [*tmp_path.iterdir()]
    predict.main(str(run), to=str(target), checkpoint="last")
    assert [*tmp_path.iterdir()] == [target]
    with pytest.raises(UserError, match=r"--picture fog: the variables are"):
        predict.main(str(run), to=str(tmp_path / "new" / "out.nc"), picture="fog")
    with monkeypatch.context() as patch:
        patch.setattr(predict, "MEMORY_LIMIT", 1000)
        with pytest.raises(UserError, match="GB of memory: take a shorter one"):
            predict.main(str(run), to=str(tmp_path / "new" / "out.nc"))
    with pytest.raises(UserError, match=r"out.nc is there: delete it"):
        predict.main(str(run), to=str(target))
