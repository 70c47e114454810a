"""The code path of the public stores, on miniatures with their layout.

These are not the public data: without a network, local stores with the same format version, names,
packing, chunking and extra variables stand in for them.
"""

import build_store
import numpy as np
import pytest
import xarray as xr
import yaml
from src.config import CHAPTER
from src.data import cloud_store
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import chunks_of, open_fields_lazily
from src.data.cloud_store import CheckedStore, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from zarr.storage import LocalStore


def mur(place: str) -> xr.Dataset:
    """MUR on AWS: Zarr v2, consolidated, 16-bit integers, days, chunks far larger than a window."""
    generator = np.random.default_rng(0)
    shape, axes = (40, 36, 72), ("time", "lat", "lon")
    values = generator.normal(290, 5, shape).round(3)
    values[:, 5:9, 3:20] = np.nan
    content = {
        "analysed_sst": (axes, values, {"units": "kelvin"}),
        "mask": (axes, np.ones(shape, np.int8)),
        "sea_ice_fraction": (axes, np.full(shape, np.nan)),
    }
    coordinates = {
        "time": np.datetime64("2002-06-01T09:00", "ns") + np.arange(40) * np.timedelta64(1, "D"),
        "lat": np.linspace(-89, 89, 36, dtype=np.float32),
        "lon": (np.arange(1, 73) * 5 - 180).astype(np.float32),
    }
    packed = {"dtype": "int16", "scale_factor": 0.001, "add_offset": 298.15, "_FillValue": -32768}
    encoding = {name: {"chunks": (5, 18, 36)} for name in content}
    encoding["analysed_sst"] |= packed
    fields = xr.Dataset(content, coordinates)
    fields.to_zarr(
        place, zarr_format=2, consolidated=True, encoding=encoding, write_empty_chunks=True
    )
    return fields


def era5(place: str) -> xr.Dataset:
    """ERA5 on Google Cloud: Zarr v2, an hour a chunk, latitude from north, levels beside it."""
    generator = np.random.default_rng(1)
    values = generator.normal(285, 5, (60, 24, 48)).astype(np.float32)
    values[:, 5:9, 3:20] = np.nan
    axes = ("time", "latitude", "longitude")
    content = {
        "sea_surface_temperature": (axes, values, {"units": "K"}),
        "temperature": (("time", "level", *axes[1:]), np.zeros((60, 2, 24, 48), np.float32)),
        "land_sea_mask": (axes[1:], np.zeros((24, 48), np.float32)),
    }
    coordinates = {
        "time": np.datetime64("1900-01-01", "ns") + np.arange(60) * np.timedelta64(1, "h"),
        "latitude": np.linspace(90, -90, 24, dtype=np.float32),
        "longitude": (np.arange(48) * 7.5).astype(np.float32),
    }
    fields = xr.Dataset(content, coordinates)
    encoding = {name: {"chunks": (1, *np.shape(c[1])[1:])} for name, c in content.items()}
    encoding["land_sea_mask"] = {"chunks": (24, 48)}
    fields.to_zarr(
        place, zarr_format=2, consolidated=True, encoding=encoding, write_empty_chunks=True
    )
    return fields


MINIATURES = {
    "mur": (mur, (5, 8, 8), ((0, 20), (30, 40))),
    "era5": (era5, (4, 8, 8), ((8, 32), (40, 52))),
}


@pytest.fixture(params=MINIATURES)
def public(request, tmp_path, capsys):
    """The settings of a configuration file with small numbers, the miniature, its statistics."""
    make, window, (train, val) = MINIATURES[request.param]
    settings = yaml.safe_load((CHAPTER / "config" / f"{request.param}.yaml").read_text())
    settings = settings["data"]["dataset"]["init_args"]
    assert settings["url"].startswith(("s3://", "gs://"))
    place, statistics = str(tmp_path / "public.zarr"), str(tmp_path / "statistics.zarr")
    fields = make(place)
    region = settings.get("region") and (-89.0, 89.0, -180.0, 180.0)  # of the miniature
    period = (train[0], val[1])
    build_store.statistics(place, train, settings["variables"], statistics, period, region)
    small = {
        "url": place,
        "statistics_url": statistics,
        "window": window,
        "train_stride": (1, 8, 8),
        "val_stride": (4, 8, 8),
        "train_months": train,
        "val_months": val,
        "region": region,
    }
    return settings | small, fields, request.param


def test_samples_of_a_public_store(public):
    """Packed integers, other names of the axes, variables of other shapes: the right values."""
    settings, fields, _ = public
    (name,) = settings["variables"]
    dataset = CloudDataset("train", **settings)
    train = fields[name].values[slice(*settings["train_months"])]
    np.testing.assert_allclose(dataset.mean, np.nanmean(train), rtol=1e-6)
    t, y, x = dataset.slices(7)
    expected = (fields[name].values[t, y, x] - dataset.mean) / dataset.std
    np.testing.assert_allclose(dataset[7][0][0].numpy(), expected, atol=1e-4)
    assert dataset.coordinates(7).lat.tolist() == fields[fields[name].dims[1]][y].values.tolist()


def test_nothing_is_written_to_it(public):
    """The statistics are kept apart; the period that is looked at is bounded."""
    settings, _, _ = public
    store = open_store(settings["url"])
    assert "statistics" not in open_fields_lazily(store)
    has_values = CloudDataset("val", **settings).opened.statistics["has_values"]
    assert has_values.all()


def test_chunks_are_larger_than_a_window(public):
    """As in the originals, so that the calculator's warning holds for them."""
    settings, _, _ = public
    chunk, objects = chunks_of(open_store(settings["url"]), settings["variables"][0])
    assert chunk == objects
    assert np.prod(chunk) > np.prod(settings["window"][1:])


def test_anonymous_access_asks_for_no_credentials(monkeypatch):
    """The configuration's ``anonymous`` reaches the file system of S3."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    fs, path = cloud_store.file_system("s3://mur-sst/zarr-v1", "s3", anonymous=True)
    assert (fs.anon, path) == (True, "mur-sst/zarr-v1")


class Denying(LocalStore):
    """As S3 answers who may not list a bucket: what does not exist is denied, too."""

    async def get(self, key, prototype=None, byte_range=None):
        value = await super().get(key, prototype, byte_range)
        if value is None:
            raise PermissionError(key)
        return value


def test_what_does_not_exist_is_denied_to_anonymous_readers(tmp_path):
    fields = mur(str(tmp_path / "mur"))
    store = CheckedStore(Denying(tmp_path / "mur"), "mur", anonymous=True)
    found = open_fields_lazily(store)
    assert {"analysed_sst", "sea_ice_fraction"} <= set(found)
    np.testing.assert_allclose(found["analysed_sst"], fields["analysed_sst"], atol=1e-3)
    (tmp_path / "mur" / "analysed_sst" / "0.0.0").unlink()
    found = open_fields_lazily(store)
    with pytest.raises(CloudError, match=r"access denied.*reading analysed_sst/0\.0\.0"):
        found["analysed_sst"][:1].load()
    with pytest.raises(CloudError, match="access denied"):
        open_fields_lazily(CheckedStore(Denying(tmp_path / "mur"), "mur"))
    with pytest.raises(CloudError, match="no Zarr store here, or none for readers without cred"):
        open_fields_lazily(CheckedStore(Denying(tmp_path / "nothing"), "mur", anonymous=True))
