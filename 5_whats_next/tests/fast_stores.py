"""What the fast reader's tests share: a store whose chunks no window fits, and its packed copy."""

import pytest
from src.data.fast_dataset import FastDataset
from src.data.pack import pack

from tests.cloud_stores import SMALL, small_store

CHUNK = (5, 4, 7)


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    """A store on this machine's disk, with its packed copy."""
    place = str(tmp_path_factory.mktemp("store") / "small.zarr")
    small_store(place, chunk=CHUNK)
    pack(place, CHUNK)
    return place


def fast(url: str, split: str = "train", **settings) -> FastDataset:
    return FastDataset(split, url=url, **(SMALL | settings))
