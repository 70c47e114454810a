"""A run's prediction of the fields that it was trained on, as one file."""

import itertools
from pathlib import Path

import build_store
import numpy as np
import pandas as pd
import predict
import pytest
import torch
import xarray as xr
import yaml

from src.data.build import add_statistics
from src.errors import UserError
from src.model.lightning_module import AutoencoderModule
from tests.runs import TINY, call, train

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


def trained(folder: Path, url: Path, last_day: str, **settings) -> Path:
    """The folder of a tiny run on a store."""
    dataset = {
        "url": str(url),
        "window": [4, 8, 8],
        "train_stride": [4, 4, 4],
        "val_stride": [4, 8, 8],
        "train_period": list(TRAINING),
        "val_period": ["2000-02-01", last_day],
        **settings,
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
    """On a store of packed NetCDF files. Windows overlap at the edges of all three axes."""
    folder = tmp_path_factory.mktemp("netcdf")
    fields(12, 20).to_netcdf(folder / "a.nc")
    files = [str(folder / "a.nc")]
    url = folder / "store.zarr"
    build_store.netcdf(files, ["sst", "rain"], str(url), TRAINING, (10, 12, 20))
    return trained(folder, url, "2000-02-09")


# Broken by: normalised values turned back for shown ones; sorted latitudes; no `~x.isnan()`; the
# first window on top; windows that leave out the edge; no attributes; untrained weights.
@pytest.mark.parametrize("ending", ["nc", "zarr"])
def test_shown_values_are_the_source_and_hidden_ones_the_prediction(
    run, tmp_path, ending
):
    predict.main(str(run), to=str(tmp_path / f"out.{ending}"))
    with xr.open_dataset(tmp_path / f"out.{ending}") as lazy:
        output = lazy.load()
    with xr.open_dataset(run.parent / "a.nc") as lazy:
        source = lazy.sel(time=slice("2000-02-01", "2000-02-09")).load()
    source = source[["rain", "sst"]].astype("float32")
    assert {*output} == {"rain", "sst", "hidden"}

    hidden = output["hidden"] == 1
    assert 0.7 < hidden.where(source["sst"].notnull()).mean() < 0.8
    for name in source:
        assert output[name].dtype == np.float32
        shown = output[name].where(~hidden)
        xr.testing.assert_equal(shown, source[name].where(~hidden))
        xr.testing.assert_equal(output[name].isnull(), source[name].isnull())
        assert source[name].attrs.items() <= output[name].attrs.items()
    for axis in source.coords:
        assert source[axis].attrs.items() <= output[axis].attrs.items()

    path = run / "checkpoints" / "best.ckpt"
    model = AutoencoderModule.load_from_checkpoint(path, weights_only=True).model.eval()
    dataset = predict.open_run(run, "best")[0]
    values = source.to_dataarray().values
    expected = np.full_like(values, np.nan)
    number = 0
    for times in ([0], [4, 5]):
        if len(times) == 2:
            number = 12
        for time, row, column in itertools.product(times, [0, 4], [0, 8, 12]):
            place = (
                slice(time, time + 4),
                slice(row, row + 8),
                slice(column, column + 8),
            )
            x = torch.from_numpy(dataset.normalise(values)[:, *place])
            with torch.no_grad():
                result = model(x[None], torch.tensor([number]))
            filled = result.prediction[0].numpy() * dataset.std[:, None, None, None]
            filled = filled + dataset.mean[:, None, None, None]
            mask = (result.hidden[0] & ~x.isnan()).numpy()
            expected[:, *place] = np.where(mask, filled, values[:, *place])
            number += 1
    predicted = output[["rain", "sst"]].to_dataarray().values
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)


# A store with packed integers and levels, as public ones are. Its grid is a multiple of the window,
# so these are the validation's windows. Broken by: untrained weights; other masks;
# an RMSE of normalised values.
def test_scores_are_those_of_the_run(tmp_path, capsys):
    url = tmp_path / "store.zarr"
    source = fields(16, 24).expand_dims(level=[500.0, 850.0]).copy(deep=True)
    encoding = {name: PACKED | {"_FillValue": -32768} for name in source}
    source.drop_encoding().to_zarr(url, encoding=encoding, write_empty_chunks=True)
    add_statistics(str(url), TRAINING, levels=[850.0])
    run = trained(tmp_path, url, "2000-02-08", levels=[850.0])
    capsys.readouterr()
    predict.main(str(run), picture="rain_850", date="2000-02-03")
    console = capsys.readouterr().out
    assert "trained on" not in console
    rows = [line.split() for line in console.splitlines()]
    scores = {row[0]: row[1:] for row in rows}
    for name, expected_unit in (("sst_850", "K"), ("rain_850", "mm")):
        here, validation, unit = scores[f"rmse_{name}"]
        assert float(here) == pytest.approx(float(validation), rel=1e-5)
        assert unit == expected_unit
    assert (run / "prediction_rain_850_2000-02-03.png").stat().st_size > 20_000
    with xr.open_dataset(run / "prediction.nc") as output:
        with xr.open_zarr(url) as stored:
            level = stored["rain"].sel(level=850, time=output["time"], drop=True)
            expected = level.astype("float32").where(output["hidden"] == 0)
            shown = output["rain_850"].where(output["hidden"] == 0)
            xr.testing.assert_equal(shown, expected)
    overlapping = ("2000-01-24", "2000-02-03")
    predict.main(str(run), period=overlapping, overwrite=True)
    assert "RMSE here (trained on), and" in capsys.readouterr().out


# Broken by: no temporary name; no `finally`; the old output removed before the new one is whole.
@pytest.mark.parametrize("ending", ["nc", "zarr"])
def test_an_output_is_whole_or_as_it_was(run, tmp_path, monkeypatch, ending):
    target = tmp_path / f"out.{ending}"
    blocks = []

    def interrupted(model, x, window, block):
        blocks.append(block)
        if len(blocks) == 2:
            raise InterruptedError("in the middle")
        return whole(model, x, window, block)

    whole = predict.predict
    monkeypatch.setattr(predict, "predict", interrupted)
    with pytest.raises(InterruptedError):
        predict.main(str(run), to=str(target))
    assert sorted(blocks) == [0, 1]
    assert not [*tmp_path.iterdir()]

    monkeypatch.setattr(predict, "predict", whole)
    predict.main(str(run), to=str(target), checkpoint="last")
    blocks.clear()
    monkeypatch.setattr(predict, "predict", interrupted)
    with pytest.raises(InterruptedError):
        predict.main(str(run), to=str(target), overwrite=True)
    assert [*tmp_path.iterdir()] == [target]
    with xr.open_dataset(target) as output:
        assert "last" in output.attrs["source"]
    with pytest.raises(UserError, match=r"out\.\w+ is there; --overwrite true"):
        predict.main(str(run), to=str(target))


BAD = {
    "nowhere/config.yaml": {"run": "nowhere"},
    "cannot read .*best.ckpt": {"checkpoint": "best", "run": "without_checkpoint"},
    "there are no data of 2001": {"period": ("2001", "2002")},
    "3 steps; a window has 4": {"period": ("2000-01-01", "2000-01-03")},
    r"--picture wind: the variables are \['rain', 'sst'\]": {"picture": "wind"},
    "no data of 2000-01-01": {"picture": "sst", "date": "2000-01-01"},
    "a file .nc or a folder .zarr": {"to": "s3://bucket/out.zarr"},
}


# Broken by: any check that is left out.
@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line(run, tmp_path, monkeypatch, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "without_checkpoint").mkdir()
    text = (run / "config.yaml").read_text()
    (tmp_path / "without_checkpoint" / "config.yaml").write_text(text)
    settings = {"run": str(run), "to": "out.nc"} | BAD[message]
    with pytest.raises(UserError, match=message):
        predict.main(**settings)
    assert [path.name for path in tmp_path.iterdir()] == ["without_checkpoint"]


def test_data_without_a_store_are_refused(tmp_path, monkeypatch):
    """Broken by: no look for lazy_fields."""
    run = train(monkeypatch, tmp_path, "--trainer.cloud_storage_path=none")
    with pytest.raises(UserError, match="DummyDataset has no store"):
        predict.main(str(run))
