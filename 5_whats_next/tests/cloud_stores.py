"""Helpers of the tests that need stores: small fields, the training settings for them."""

import numpy as np
import pytest
import xarray as xr
from src.data.cloud_build import build_store
from src.data.cloud_errors import CloudError
from src.data.cloud_store import CheckedStore
from src.data.usecase_cloud_dataset import CloudDataset
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

# For a store of ``small_fields``.
SMALL = {
    "window": (3, 4, 6),
    "train_stride": (1, 3, 5),
    "val_stride": (3, 4, 6),
    "train_months": (0, 12),
    "val_months": (16, 24),
}


def small_fields(months: int = 24, height: int = 10, width: int = 20, seed: int = 0) -> xr.Dataset:
    """Two variables round the globe with land, and a month that is all land in one of them."""
    generator = np.random.default_rng(seed)
    values = generator.normal(290, 5, (2, months, height, width)).astype(np.float32)
    values[:, :, 2:5, 3:9] = np.nan
    coordinates = {
        "time": (np.datetime64("2000-01") + np.arange(months)).astype("datetime64[ns]"),
        "lat": np.linspace(-80, 80, height),
        "lon": np.arange(width) * 360 / width,
    }
    content = {
        name: (("time", "lat", "lon"), field, {"units": "K"})
        for name, field in zip(("a", "b"), values, strict=True)
    }
    return xr.Dataset(content, coordinates, {"source": f"random numbers, seed {seed}"})


def small_store(url: str, fields: xr.Dataset | None = None, **settings) -> CheckedStore:
    settings = {"train_months": SMALL["train_months"], "chunk": (5, 4, 7)} | settings
    return build_store(url, small_fields() if fields is None else fields, **settings)


def dataset(url: str, split: str = "train", **settings) -> CloudDataset:
    return CloudDataset(split, url, **(SMALL | settings))


def assert_same_samples(ours: CloudDataset, theirs, indices=None) -> None:
    """The same bits, the NaN included."""
    assert len(ours) == len(theirs)
    indices = list(range(len(theirs)) if indices is None else indices)
    for (x, index), number in zip(ours.__getitems__(indices), indices, strict=True):
        assert index == number
        expected, _ = theirs[number]
        np.testing.assert_array_equal(x.numpy().view(np.int32), expected.numpy().view(np.int32))


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    """A store on this machine's disk."""
    place = str(tmp_path_factory.mktemp("store") / "small.zarr")
    small_store(place)
    return place


def end_forked_workers(batches) -> None:
    """Kill the workers of a DataLoader's iterator: forked ones may not end, and it would wait."""
    batches._worker_pids_set = False  # that they were killed is no error
    signal_handling._remove_worker_pids(id(batches))
    for worker in batches._workers:
        worker.kill()
    batches._shutdown_workers()


def assert_fork_is_refused(dataset: CloudDataset) -> None:
    """A forked worker raises, instead of waiting for ever."""
    loader = DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    with pytest.raises(CloudError, match="fork hangs once a store is open; allowed: forkserver, s"):
        next(batches)
    end_forked_workers(batches)
