"""The datasets: real ocean windows, no leakage in time, dummy noise, and one's own fields."""

import numpy as np
import pytest
import torch
import xarray as xr
from src.data.pytorch_dataset import DummyDataset, OceanDataset, WindowDataset
from src.data.statistics import check_months, valid_statistics
from src.errors import UserError


def fields(months=24, height=8, width=12, variables=("a", "b")) -> xr.Dataset:
    """A small data set with a coast: the first three columns are land."""
    rng = np.random.default_rng(0)
    values = {
        name: rng.normal(size=(months, height, width)).astype(np.float32) for name in variables
    }
    for number, array in enumerate(values.values()):
        array[:] = 10 * number + (number + 1) * array
        array[..., :3] = np.nan
    return xr.Dataset(
        {name: (("time", "lat", "lon"), array, {"units": "m"}) for name, array in values.items()},
        coords={
            "time": np.datetime64("2001-01") + np.arange(months).astype("timedelta64[M]"),
            "lat": np.linspace(-4, 3, height),
            "lon": np.arange(width) * 30.0,
        },
    ).assign_coords(time=lambda d: d.time.astype("datetime64[ns]"))


def windows(data: xr.Dataset, split="train", **arguments) -> WindowDataset:
    settings = {"window": (4, 4, 4), "stride": (1, 2, 2)}
    settings |= {"train_months": (0, 12), "val_months": (18, 24)}
    return WindowDataset(data, split, **(settings | arguments))


def test_samples_are_the_real_values():
    """A window, turned back into its units, is what stands in the file."""
    data = fields()
    dataset = windows(data)
    for index in (0, 7, len(dataset) - 1):
        x, number = dataset[index]
        assert number == index
        assert x.dtype == torch.float32
        t, y, xs = dataset.slices(index)
        for variable, name in enumerate(dataset.variables):
            restored = x[variable].numpy() * dataset.std[variable] + dataset.mean[variable]
            expected = data[name].values[t, y, xs]
            np.testing.assert_allclose(restored, expected, rtol=1e-5, atol=1e-5)
        place = dataset.coordinates(index)
        np.testing.assert_array_equal(place.lat, data.lat.values[y])


def test_training_data_is_normalised():
    dataset = windows(fields())
    train = dataset.fields[:, :12]
    np.testing.assert_allclose(np.nanmean(train, axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(np.nanstd(train, axis=(1, 2, 3)), 1, atol=1e-5)
    assert np.isnan(train[..., :3]).all()


def test_validation_months_leave_no_trace():
    """Change everything after the training months: statistics, climatology and samples stay."""
    data = fields()
    changed = data.copy(deep=True)
    changed["a"][12:] = 1e6
    before, after = windows(data), windows(changed)
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.std, after.std)
    np.testing.assert_array_equal(before.monthly_mean, after.monthly_mean)
    assert len(before) == len(after)
    for index in range(len(before)):
        assert before[index][0].nan_to_num().equal(after[index][0].nan_to_num())
    # The validation set does see the change, or the test above says nothing.
    assert windows(changed, "val")[0][0].nan_to_num().max() > 1e4


def test_windows_stay_in_their_months():
    for split, (start, end) in (("train", (0, 12)), ("val", (18, 24))):
        dataset = windows(fields(), split)
        times = [dataset.slices(index)[0] for index in range(len(dataset))]
        assert min(t.start for t in times) == start
        assert max(t.stop for t in times) == end


def test_gap_of_at_least_one_window():
    check_months(24, 4, (0, 12), (16, 24))
    check_months(24, 4, (12, 24), (0, 8))  # validation may come first
    for val_months in ((15, 24), (12, 20), (4, 8)):
        with pytest.raises(UserError, match=r"val_months: .*; allowed: at least one window, 4"):
            check_months(24, 4, (0, 12), val_months)
    with pytest.raises(UserError, match=r"val_months: \[20, 30\] is not a period within the 24"):
        check_months(24, 4, (0, 12), (20, 30))


def test_longitude_wraps():
    """With wrapping, a window that starts in the last column goes on with the first ones."""
    data = fields()
    plain, wrapped = (windows(data, stride=(1, 1, 1), wrap_longitude=w) for w in (False, True))
    assert {x for _, _, x in plain.starts} == set(range(9))
    assert {x for _, _, x in wrapped.starts} == set(range(12))
    index = wrapped.starts.index((0, 0, 11))
    expected = np.take(plain.fields, [11, 0, 1, 2], axis=3)[:, 0:4, 0:4]
    np.testing.assert_array_equal(wrapped[index][0].numpy(), expected)
    np.testing.assert_array_equal(wrapped.coordinates(index).lon, [330, 360, 390, 420])


def test_climatology_is_the_mean_of_the_calendar_month():
    data = fields(months=48)
    dataset = windows(data, train_months=(0, 36), val_months=(42, 48))
    index = dataset.starts.index((2, 0, 4))
    march = dataset.fields[:, [2, 14, 26], 0:4, 4:8].mean(axis=1)
    np.testing.assert_allclose(dataset.climatology(index)[:, 0].numpy(), march, rtol=1e-5)


def test_statistics_do_not_lose_digits():
    """300 K with a spread of 1 mK: a float32 sum would see no spread at all."""
    values = np.full((1, 1000, 1000), 300.0, np.float32)
    values[:, ::2] += np.float32(2**-9)
    values[:, 0] = np.nan
    mean, std = valid_statistics(values, ["t"])
    assert mean[0] == pytest.approx(300 + 2**-10, abs=1e-4)
    assert std[0] == pytest.approx(2**-10, rel=1e-3)


@pytest.mark.parametrize("value", [np.nan, 5.0])
def test_nothing_to_learn_from(value):
    data = fields()
    data["b"][:12] = value
    with pytest.raises(UserError, match=r"data.dataset: b has no valid value in the training mon"):
        windows(data)


def test_nothing_to_validate_on():
    data = fields()
    data["b"][18:] = np.nan
    with pytest.raises(UserError, match=r"b has no valid value in months \[18, 24\] \(val\)"):
        windows(data, "val")


@pytest.mark.parametrize("window", [(13, 4, 4), (4, 9, 4), (4, 4, 13)])
def test_window_larger_than_the_field(window):
    with pytest.raises(UserError, match=r"allowed"):
        windows(fields(), window=window)


def test_stride_must_be_positive():
    with pytest.raises(UserError, match=r"stride \[1, 0, 1\] must be at least 1"):
        windows(fields(), stride=(1, 0, 1))


def test_ocean():
    """The real file: its months, its place, and land where there is land."""
    train, val = OceanDataset("train"), OceanDataset("val")
    assert train.sample_shape == val.sample_shape == (1, 12, 16, 32)
    assert (len(train), len(val)) == (2508, 54)
    assert (train.variables, train.units) == (["surface_temperature"], ["K"])
    assert 299 < train.mean[0] < 302
    place = train.coordinates(0)
    assert str(place.time[0])[:7] == "2006-04"
    assert place.lat[0] == pytest.approx(-5, abs=0.01)
    # 25 degrees east on the equator is Africa, 60 degrees east the Indian Ocean.
    rows = {lon: round(lon / 360 * 432) for lon in (25, 60)}
    assert np.isnan(train.fields[0, :, 9, rows[25]]).all()
    assert not np.isnan(train.fields[0, :, 9, rows[60]]).any()
    kelvin = train.fields[0] * train.std[0] + train.mean[0]
    assert 285 < np.nanmin(kelvin) < np.nanmax(kelvin) < 310


def test_dummy_is_noise_with_a_coast():
    dataset = DummyDataset("train", (2, 3, 8, 10), num_samples=5)
    x, index = dataset[3]
    assert (x.shape, index, len(dataset)) == ((2, 3, 8, 10), 3, 5)
    assert x[..., :2].isnan().all()
    assert not x[..., 2:].isnan().any()
    assert dataset[3][0].nan_to_num().equal(x.nan_to_num())
    assert not dataset[4][0].nan_to_num().equal(x.nan_to_num())
    assert not DummyDataset("val", (2, 3, 8, 10))[3][0].nan_to_num().equal(x.nan_to_num())


def test_infinite_values_are_named():
    data = fields()
    data["a"][20, 0, 5] = np.inf
    with pytest.raises(UserError, match="a has 1 infinite values"):
        windows(data)
