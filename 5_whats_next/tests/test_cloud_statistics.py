"""Statistics out of core: those of the data in memory, kept with the data that they are of."""

import json

import numpy as np
import pytest
import xarray as xr
from src.data.cloud_build import build_store, ocean_fields
from src.data.cloud_errors import CloudError
from src.data.cloud_statistics import Moments, compute_statistics, moments_of
from src.data.pytorch_dataset import OceanDataset

from tests.cloud_stores import dataset, small_fields, small_store


def test_statistics_are_those_in_memory(tmp_path):
    """Out of core, in blocks of any size, against NumPy on the whole."""
    store = small_store(str(tmp_path / "store"))
    fields = xr.open_zarr(store, chunks=None, consolidated=False)[["a", "b"]]
    train = small_fields().isel(time=slice(0, 12)).to_dataarray().values.astype(np.float64)
    for chunk, threads in (((5, 4, 7), 1), ((1, 1, 1), 3), ((100, 100, 100), 2)):
        found = compute_statistics(fields, (0, 12), chunk, threads)
        np.testing.assert_allclose(found["mean"], np.nanmean(train, axis=(1, 2, 3)), rtol=1e-12)
        np.testing.assert_allclose(found["std"], np.nanstd(train, axis=(1, 2, 3)), rtol=1e-12)
        assert found["count"].values.tolist() == np.isfinite(train).sum(axis=(1, 2, 3)).tolist()


def test_statistics_see_the_training_months_only(tmp_path):
    fields = small_fields()
    for name in fields.data_vars:
        fields[name][12:] += 1000
    for name, content in (("shifted", fields), ("plain", small_fields())):
        small_store(str(tmp_path / name), content)
    shifted, plain = (dataset(str(tmp_path / name)) for name in ("shifted", "plain"))
    np.testing.assert_array_equal(shifted.mean, plain.mean)
    np.testing.assert_array_equal(shifted.std, plain.std)


def test_moments_keep_their_digits():
    """A large mean and a small spread, in parts of any size, one of them empty."""
    values = np.random.default_rng(0).normal(1e6, 1e-3, 10_000)
    total = Moments()
    for part in np.split(values, [1, 1, 17, 5000]):
        total = total.merge(moments_of(part))
    assert total.number == len(values)
    assert total.mean == pytest.approx(values.mean(), rel=1e-15)
    assert np.sqrt(total.squares / total.number) == pytest.approx(values.std(), rel=1e-6)


def test_statistics_of_the_real_ocean(tmp_path):
    """The same 32-bit numbers as chapter 0's."""
    store = build_store(str(tmp_path / "ocean"), ocean_fields(), (0, 30), (7, 18, 50))
    found = xr.open_zarr(store, group="statistics/0-30", consolidated=False)
    theirs = OceanDataset("train")
    assert found["mean"].values.astype(np.float32) == theirs.mean
    assert found["std"].values.astype(np.float32) == theirs.std


def test_statistics_of_several_training_periods(tmp_path):
    """A whole store gets those that it lacks; the others stay, and training finds its own."""
    place, lone = str(tmp_path / "store"), str(tmp_path / "lone")
    small_store(place)
    first = dataset(place).mean
    with pytest.raises(CloudError, match=r"no statistics of the months \[0,8\]"):
        dataset(place, train_months=(0, 8))
    small_store(place, train_months=(0, 8))
    small_store(lone, train_months=(0, 8))
    both, alone = dataset(place, train_months=(0, 8)), dataset(lone, train_months=(0, 8))
    np.testing.assert_array_equal(both.mean, alone.mean)
    assert (both.mean != first).all()
    np.testing.assert_array_equal(dataset(place).mean, first)


def test_a_kill_while_statistics_are_written(tmp_path, monkeypatch):
    """What they were made of is written last; before it they do not count."""
    place = str(tmp_path / "store")
    small_store(place)
    group = tmp_path / "store" / "statistics" / "0-12" / "zarr.json"
    content = json.loads(group.read_text())
    group.write_text(json.dumps(content | {"attributes": {}}))
    with pytest.raises(CloudError, match="there are no statistics"):
        dataset(place)
    small_store(place)
    assert len(dataset(place))


def test_statistics_of_another_store_or_none_are_refused(tmp_path):
    ours, other = str(tmp_path / "ours"), str(tmp_path / "other")
    small_store(ours)
    small_store(other, small_fields(seed=1))
    with pytest.raises(CloudError, match="the statistics are of other data, not of a in"):
        dataset(ours, statistics_url=other)
    small_fields().to_zarr(tmp_path / "bare", zarr_format=3, consolidated=False)
    with pytest.raises(CloudError, match=r"no statistics of the months \[0,12\]; make them with"):
        dataset(str(tmp_path / "bare"))
