"""Faults of the network and of the data: retried, or one line; never fill values."""

import functools
import math
import pickle
import random
import shutil
import time
from pathlib import Path
from unittest.mock import Mock

import build_store
import numpy as np
import pytest
from zarr.core.sync import sync

from src.data.build import add_statistics, build
from src.data.cube import cube_fields
from src.data.s3_server import connect
from src.data.store import bad_chunks, open_fields, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError
from tests.fault_proxy import Fault, FaultyProxy
from tests.runs import call

URL = "s3://embedded/faults.zarr"
PERIODS = {"train_period": ("1900-01", "1901-04"), "val_period": ("1901-09", "1901-12")}
SETTINGS = {
    "url": URL,
    "dask": "none",
    "window": (4, 8, 8),
    "train_stride": (2, 8, 8),
    **PERIODS,
}


def build_cube(url: str) -> None:
    build(
        url,
        cube_fields((24, 18, 36), (12, 9, 18), seed=0),
        (12, 9, 18),
        ("1900-01", "1901-04"),
    )


@pytest.fixture
def proxy(monkeypatch):
    build_cube(URL)
    with FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        yield proxy


@pytest.mark.parametrize("kind", ["429", "503", "reset", "cut"])
def test_what_may_pass_is_tried_again(proxy, kind):
    """Broken by: no custom error handler in checked_store.py, or none for 429."""
    expected = CloudDataset("train", **SETTINGS)[0][0]
    proxy.faults = [Fault(kind, times=2, path="/c/")]
    assert (
        CloudDataset("train", **SETTINGS)[0][0]
        .nan_to_num(-1)
        .equal(expected.nan_to_num(-1))
    )
    assert proxy.faults[0].times == 0


def test_a_copy_in_a_worker_tries_again_too(monkeypatch, tmp_path):
    """Broken by: no __setstate__ in CheckedStore: libraries have their defaults there."""
    store = pickle.dumps(open_store(str(tmp_path)))
    configure = Mock()
    monkeypatch.setattr("src.data.checked_store.configure_libraries", configure)
    pickle.loads(store)
    configure.assert_called_once()


@pytest.mark.parametrize(
    ("kind", "path"), [("stall", "/c/"), ("503", "/c/"), ("stall", "")]
)
def test_a_failing_endpoint_ends_within_its_patience(proxy, kind, path):
    """In one line, without values. Broken by: no timeout in CheckedStore.get."""
    settings = SETTINGS | {"patience": 3}
    dataset = CloudDataset("train", **settings) if path else None
    proxy.faults, start = [Fault(kind, math.inf, path)], time.monotonic()
    with pytest.raises(
        UserError, match=r"^s3://embedded/faults.zarr: no answer in 3 s \("
    ):
        dataset[0] if dataset else CloudDataset("train", **settings)
    assert time.monotonic() - start < 8


def test_a_store_that_does_not_answer_is_not_damaged(proxy):
    """A repair would build it again. Broken by: UserError in bad_chunks."""
    store = open_store(URL, patience=1)
    proxy.faults = [Fault("stall", math.inf, "salinity/c/")]
    with pytest.raises(UserError, match="no answer in 1 s"):
        list(bad_chunks(store, "salinity"))


def test_shards_are_for_the_next_chapter(tmp_path):
    """Zarr fills what a shard has lost. Broken by: no look at shards in open_fields."""
    fields = cube_fields((24, 18, 36), (12, 9, 18), seed=0)
    encoding = {"salinity": {"chunks": (12, 9, 18), "shards": (24, 18, 36)}}
    fields[["salinity"]].chunk(-1).to_zarr(tmp_path, encoding=encoding, zarr_format=3)
    with pytest.raises(UserError, match="has shards; chapter 3 reads them"):
        open_fields(open_store(str(tmp_path)))


@pytest.mark.parametrize("dask", ["none", "threads"])
def test_a_lost_chunk_is_named(dask):
    """Never read as land. Broken by: no `value is None` in CheckedStore."""
    url = URL.replace("faults", f"lost-{dask}")
    build_cube(url)
    sync(open_store(url, read_only=False).delete("salinity/c/0/0/0"))
    with pytest.raises(UserError, match=r"salinity/c/0/0/0 is missing"):
        CloudDataset("train", **(SETTINGS | {"url": url, "dask": dask}))[0]


@pytest.mark.parametrize("dask", ["none", "threads"])
def test_a_missing_chunk_may_be_land(tmp_path, dask):
    """If asked for, and if the store means it. Broken by: no allow_land, no `isnan` in it."""
    values = cube_fields((24, 18, 36), (12, 9, 18), seed=0)[["salinity"]].load()
    values["salinity"][:, :9, :18] = np.nan
    to = str(tmp_path / "statistics")
    settings = SETTINGS | {"url": str(tmp_path / "store"), "dask": dask}
    settings |= {"statistics_store": to}
    encoding = {"salinity": {"chunks": (12, 9, 18), "fill_value": np.nan}}
    values.to_zarr(settings["url"], encoding=encoding, zarr_format=3)
    assert not (tmp_path / "store/salinity/c/0/0/0").exists()
    arguments = {"url": settings["url"], "train_period": PERIODS["train_period"]}
    with pytest.raises(UserError, match="is missing"):
        add_statistics(**arguments, to=to)
    add_statistics(**arguments, to=to, missing_chunks="land")
    with pytest.raises(UserError, match="is missing"):
        CloudDataset("train", **settings)[0]
    dataset = CloudDataset("train", **settings, missing_chunks="land")
    expected = dataset.normalise(values["salinity"].values[None, :4, :8, :8])
    np.testing.assert_array_equal(dataset[0][0], expected)
    (tmp_path / "store/salinity/c/0/1/0").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"chunks \['salinity/c/0/1/0'\]"):
        read_all(settings | {"missing_chunks": "land", "window": (4, 18, 18)})

    encoding["salinity"]["fill_value"] = 0.0
    values.to_zarr(settings["url"], encoding=encoding, zarr_format=3, mode="w")
    with pytest.raises(UserError, match=r"salinity read as 0.0, and not as land$"):
        CloudDataset("train", **settings, missing_chunks="land")


def read_all(settings: dict) -> None:
    for split in ("train", "val"):
        dataset = CloudDataset(split, **settings)
        dataset.__getitems__(range(len(dataset)))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    bit = random.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    build_cube(str(folder))
    return folder


def test_a_flipped_bit_is_named(tmp_path, whole):
    """In fields, axes and statistics. Broken by: no checksum, no check_chunks, lazy statistics."""
    chunks = [path.relative_to(whole) for path in whole.rglob("c/**/*")]
    chunks = [path for path in chunks if (whole / path).is_file()]
    # Nobody reads the axes of the statistics: they are those of the fields.
    axes = ("lat", "lon", "month")
    chunks = [path for path in chunks if path.parts[2] not in axes]
    for number, chunk in enumerate(random.sample(chunks, 12)):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        flip_a_bit(folder / chunk)
        settings = SETTINGS | {
            "url": str(folder),
            "dask": ("none", "threads")[number % 2],
        }
        # The windows of both splits have all chunks.
        settings |= {"window": (4, 18, 36), "train_stride": (4, 18, 36)}
        settings |= {"val_stride": (4, 18, 36)}
        key = str(chunk)
        if key.startswith("statistics"):
            key = "/".join(chunk.parts[2:])
        with pytest.raises(UserError, match=rf"damaged chunks \['{key}'\]"):
            read_all(settings)


def test_a_damaged_chunk_beyond_the_edge_is_named(tmp_path):
    """Of a width that is no multiple of the chunk's. Broken by: no `% size` in bad_chunks."""
    fields = cube_fields((24, 18, 36), (12, 9, 10), seed=0)[["salinity"]]
    build(str(tmp_path), fields, (12, 9, 10), ("1900-01", "1901-04"))
    flip_a_bit(tmp_path / "salinity/c/0/0/0")
    window = [slice(0, 4), slice(0, 8), slice(30, 38)]
    bad = bad_chunks(open_store(str(tmp_path)), "salinity", window)
    assert list(bad) == ["salinity/c/0/0/0"]


def test_check_names_and_mends(monkeypatch, tmp_path, capsys):
    """Lost and flipped chunks, and axes. Broken by: no note_damaged_regions, no mend_statistics.

    Or `group.keys()` in create_arrays: the second repair would delete the statistics. Or, in
    note_damaged_regions, the number of an axis' own chunks: the third would not write the axes.
    """
    cube = ["cube", "--months=24", "--height=18", "--width=36", "--chunk=[4,9,18]"]
    call(monkeypatch, *cube, f"--url={tmp_path}", script=build_store)
    words = ["statistics", f"--url={tmp_path}", "--train_period=[1900-01,1901-04]"]
    call(monkeypatch, *words, script=build_store)
    before = CloudDataset("train", **(SETTINGS | {"url": str(tmp_path)}))[0][0]
    flip_a_bit(tmp_path / "current_speed/c/5/1/1")
    (tmp_path / "salinity/c/3/0/0").unlink()
    (tmp_path / "sea_surface_height/zarr.json").unlink()
    flip_a_bit(tmp_path / "statistics/1900-01_1901-04/climatology/c/0/0/0/0")
    capsys.readouterr()
    with pytest.raises(SystemExit, match="1"):
        call(monkeypatch, "check", f"--url={tmp_path}", script=build_store)
    named = capsys.readouterr().out
    for key in ("current_speed/c/5/1/1", "salinity/c/3/0/0", "climatology/c/0/0/0/0"):
        assert key in named
    assert "sea_surface_height/zarr.json" in named
    assert named.count("damaged or missing") == 4
    call(monkeypatch, "check", f"--url={tmp_path}", "--repair=true", script=build_store)
    assert "all chunks are there" in capsys.readouterr().out
    (tmp_path / "salinity/c/0/0/0").unlink()
    flip_a_bit(tmp_path / "statistics/1900-01_1901-04/lat/c/0")
    call(monkeypatch, "check", f"--url={tmp_path}", "--repair=true", script=build_store)
    assert "all chunks are there" in capsys.readouterr().out
    flip_a_bit(tmp_path / "lat/c/0")
    flip_a_bit(tmp_path / "time/c/0")
    call(monkeypatch, "check", f"--url={tmp_path}", "--repair=true", script=build_store)
    assert "all chunks are there" in capsys.readouterr().out
    after = CloudDataset("train", **(SETTINGS | {"url": str(tmp_path)}))[0][0]
    np.testing.assert_array_equal(before, after)


def test_data_that_cannot_be_trained_on(tmp_path):
    """Broken by: no isfinite in compute_statistics: all samples would be land; no check_dates."""
    fields = cube_fields((24, 8, 8), (12, 8, 8), seed=0)[["salinity"]]
    with pytest.raises(UserError, match="standard deviation"):
        build(str(tmp_path / "a"), fields * np.nan, (12, 8, 8), ("1900-01", "1901-04"))
    # Stores that were not built here, without a month of the training or of the validation.
    urls = [str(tmp_path / name) for name in ("train", "val")]
    for url, month in zip(urls, (5, 22), strict=True):
        fields.drop_isel(time=month).to_zarr(url, zarr_format=3)
    with pytest.raises(UserError, match=r"no data between 1900-05-01.* and 1900-07"):
        add_statistics(urls[0], PERIODS["train_period"])
    add_statistics(urls[1], PERIODS["train_period"])
    with pytest.raises(UserError, match=r"no data between 1901-10-01.* and 1901-12"):
        CloudDataset("train", **(SETTINGS | {"url": urls[1]}))
    fields.rename(lat="row").to_zarr(tmp_path / "b")
    with pytest.raises(UserError, match=r"axes of .*, and not time, lat, lon"):
        CloudDataset("train", **(SETTINGS | {"url": str(tmp_path / "b")}))


@pytest.mark.parametrize("kind", ["403", "stall"])
def test_statistics_that_cannot_be_read_are_not_absent(monkeypatch, proxy, kind):
    """Nor written anew without the others. Broken by: UserError for NoStoreError in build.py, or
    in statistics.py.
    """
    patient = functools.partial(open_store, patience=1)
    monkeypatch.setattr("src.data.build.open_store", patient)
    proxy.faults = [Fault(kind, math.inf, "statistics/")]
    expected = "access denied" if kind == "403" else "no answer in 1 s"
    with pytest.raises(UserError, match=expected):
        add_statistics(URL, PERIODS["train_period"], ["salinity"], again=True)
    with pytest.raises(UserError, match=expected):
        CloudDataset("train", **SETTINGS, patience=1)
    proxy.faults = []
    assert len(CloudDataset("train", **SETTINGS).variables) == 4


def test_statistics_elsewhere_are_read_with_keys(monkeypatch, whole):
    """At a name that begins as the public store's. Broken by: no "/" behind url in open()."""
    to = f"{whole}-statistics"
    add_statistics(str(whole), PERIODS["train_period"], to=to)
    opened = []

    def noted(url, patience, anonymous):
        opened.append((url.removeprefix(str(whole)), anonymous))
        return open_store(url, patience, anonymous)

    monkeypatch.setattr("src.data.usecase_cloud_dataset.open_store", noted)
    settings = SETTINGS | {"url": str(whole), "anonymous": True}
    CloudDataset("train", **settings)
    CloudDataset("train", **settings, statistics_store=to)
    period = "statistics/1900-01_1901-04"
    assert opened[:2] == [("", True), (f"/{period}", True)]
    assert opened[2:] == [("", True), (f"-statistics/{period}", False)]
