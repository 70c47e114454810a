"""The packed copy: made in steps, refused when it is another one or half done."""

import numpy as np
import pytest
import xarray as xr
import zarr
from src.data import pack as pack_module
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import open_fields_lazily
from src.data.cloud_statistics import compute_statistics, write_statistics
from src.data.cloud_store import open_store
from src.data.fast_store import PACKED
from src.data.pack import pack

from tests.cloud_stores import (
    SMALL,
    assert_same_samples,
    dataset,
    small_fields,
    small_store,
)
from tests.fast_stores import CHUNK, fast
from tests.fast_stores import url as url  # a fixture


def test_packed_integers_are_not_read_as_they_are(url, tmp_path):
    fields = small_fields()
    encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 290.0, "_FillValue": -9999}
    place = str(tmp_path / "integers")
    fields.to_zarr(
        place, zarr_format=3, consolidated=False, encoding=dict.fromkeys(fields.data_vars, encoding)
    )
    store = open_store(place, writable=True)
    found = compute_statistics(open_fields_lazily(store), SMALL["train_months"], CHUNK)
    write_statistics(store, found)
    with pytest.raises(CloudError, match=r"a is packed into int16 with a scale .* pack_store.py"):
        fast(place)
    pack(place, CHUNK)  # unpacks them
    assert_same_samples(fast(place, packed=True), dataset(place), range(8))


def test_no_packed_copy_or_half_of_one(url, tmp_path, monkeypatch):
    place = str(tmp_path / "store")
    small_store(place, chunk=CHUNK)
    with pytest.raises(CloudError, match=r"no array packed/fields here; pack_store.py makes"):
        fast(place, packed=True)
    stack, calls = np.stack, []

    def killed(parts):
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return stack(parts)

    monkeypatch.setattr(pack_module.np, "stack", killed)
    with pytest.raises(KeyboardInterrupt):
        pack(place, CHUNK, threads=1)
    monkeypatch.undo()
    with pytest.raises(CloudError, match=r"packed copy is not finished; run pack_store.py again"):
        fast(place, packed=True)
    with pytest.raises(CloudError, match="there is another packed copy; --overwrite"):
        pack(place, (5, 4, 4))
    there = len(list((tmp_path / "store" / PACKED / "c").rglob("*")))
    assert there > 5
    pack(place, CHUNK)
    assert_same_samples(fast(place, packed=True), dataset(place))
    pack(place, (5, 4, 4), overwrite=True)
    assert zarr.open_array(place, path=PACKED).chunks == (2, 5, 4, 4)
    assert_same_samples(fast(place, packed=True), dataset(place))


@pytest.mark.slow(copies=True)
def test_several_copies_beside_each_other(tmp_path):
    """With different chunks, each under its name."""
    place = str(tmp_path / "store")
    small_store(place, chunk=CHUNK)
    pack(place, CHUNK)
    pack(place, (1, 10, 20), name="months")
    for name, chunks in ((True, (5, 4, 7)), ("months", (1, 10, 20)), ("fields", (5, 4, 7))):
        ours = fast(place, packed=name)
        assert ours.source.arrays[0].chunk_layout.read_chunk.shape == (2, *chunks)
        assert_same_samples(ours, dataset(place))
    with pytest.raises(CloudError, match=r"no array packed/other here; pack_store.py makes"):
        fast(place, packed="other")
    for name in ("", "../a", "a/b"):
        with pytest.raises(CloudError, match=r"is no name; allowed: letters, digits, _ and -"):
            pack(place, CHUNK, name=name)


def test_packed_copy_without_a_variable(url, tmp_path):
    place = str(tmp_path / "store")
    small_store(place, chunk=CHUNK)
    pack(place, CHUNK, ["a"])
    assert_same_samples(fast(place, packed=True, variables=["a"]), dataset(place, variables=["a"]))
    with pytest.raises(CloudError, match=r"its packed copy has no b; run pack_store.py again"):
        fast(place, packed=True)


def test_chapter_2_reads_a_store_with_a_packed_copy(url):
    """It lies in a group of its own."""
    assert set(xr.open_zarr(url, consolidated=False).data_vars) == {"a", "b"}
    assert dataset(url).variables == ["a", "b"]
