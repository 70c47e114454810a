"""Faults of the network and of the data: retried, or one line; never fill values."""

import math
import pickle
import random
import time
from pathlib import Path
from unittest.mock import Mock

import build_store
import numpy as np
import pytest
import zarr
from numcodecs import Zstd
from zarr.core.sync import sync

from src.data.build import add_statistics, build
from src.data.check import damage
from src.data.chunks import bad_chunks
from src.data.cube import cube_fields
from src.data.s3_server import connect
from src.data.store import open_fields, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.errors import UserError
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
        cube_fields((24, 18, 36), (12, 9, 18)),
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


def test_a_failing_endpoint_ends_within_its_patience(monkeypatch, proxy):
    """In one line, without values; nothing is taken for damaged, which would be built again.

    Broken by: no timeout in CheckedStore.get; UserError in bad_chunks; no add_retryable_error: a
    server that restarts would end a training.
    """
    CloudDataset(
        "train", **SETTINGS
    )  # begins the session with the server, which takes time
    settings = SETTINGS | {"patience": 3}
    dataset = CloudDataset("train", **settings)
    # Fields and statistics are opened side by side, so either may be the first.
    line = r"^s3://embedded/faults.zarr\S*: no answer in 3 s \("
    proxy.faults, start = [Fault("503", math.inf, "/c/")], time.monotonic()
    with pytest.raises(UserError, match=line):
        dataset[0]
    with pytest.raises(UserError, match=line):
        list(bad_chunks(dataset.store, "salinity"))
    proxy.faults = [Fault("stall", math.inf)]
    with pytest.raises(UserError, match=line):
        CloudDataset("train", **settings)
    monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    with pytest.raises(UserError, match=line):
        CloudDataset("train", **settings)
    assert time.monotonic() - start < 32


def test_shards_are_for_the_next_chapter(tmp_path):
    """Zarr fills what a shard has lost. Broken by: no look in open_fields or bad_chunks."""
    fields = cube_fields((24, 18, 36), (12, 9, 18))
    encoding = {"salinity": {"chunks": (12, 9, 18), "shards": (24, 18, 36)}}
    fields[["salinity"]].chunk(-1).to_zarr(tmp_path, encoding=encoding, zarr_format=3)
    for read in (open_fields, lambda store: damage(store.url)):
        with pytest.raises(UserError, match="has shards; chapter 3 reads them"):
            read(open_store(str(tmp_path)))


def test_a_lost_chunk_is_named():
    """Never read as land. Broken by: no `value is None` in CheckedStore."""
    url = URL.replace("faults", "lost")
    build_cube(url)
    sync(open_store(url, read_only=False).delete("salinity/c/0/0/0"))
    for dask in ("none", "threads"):
        with pytest.raises(UserError, match=r"salinity/c/0/0/0 is missing"):
            CloudDataset("train", **(SETTINGS | {"url": url, "dask": dask}))[0]


def test_a_missing_chunk_may_be_land(tmp_path):
    """If asked for, and if the store means it. Broken by: no allow_land, no `isnan` in it."""
    values = cube_fields((24, 18, 36), (12, 9, 18))[["salinity"]].load()
    values["salinity"][:, :9, :18] = np.nan
    settings = SETTINGS | {"url": str(tmp_path / "store"), "dask": "threads"}
    settings |= {"statistics_store": str(tmp_path), "missing_chunks": "land"}
    encoding = {"salinity": {"chunks": (12, 9, 18), "fill_value": np.nan}}
    values.to_zarr(settings["url"], encoding=encoding, zarr_format=3)
    assert not (tmp_path / "store/salinity/c/0/0/0").exists()
    arguments = {"url": settings["url"], "train_period": PERIODS["train_period"]}
    with pytest.raises(UserError, match="is missing"):
        add_statistics(**arguments, to=str(tmp_path))
    add_statistics(**arguments, to=str(tmp_path), missing_chunks="land")
    dataset = CloudDataset("train", **settings)
    expected = dataset.normalise(values["salinity"].values[None, :4, :8, :8])
    np.testing.assert_array_equal(dataset[0][0], expected)
    (tmp_path / "store/salinity/c/0/1/0").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"chunks \['salinity/c/0/1/0'\]"):
        read_all(settings | {"window": (4, 18, 18)})

    encoding["salinity"]["fill_value"] = 0.0
    values.to_zarr(settings["url"], encoding=encoding, zarr_format=3, mode="w")
    with pytest.raises(UserError, match=r"salinity read as 0.0, and not as land$"):
        CloudDataset("train", **settings)


def test_other_stores_may_be_unusual(tmp_path):
    """Zarr writes no chunk of zeros: a date may lie in one. A field may be in days since a date.

    Broken by: no load_axes, no look at the steps in it; decode_cf for all variables. The check
    knows that it writes no number that is 0 either. Broken by: no `node.ndim` in damage.
    """
    fields = cube_fields((4, 5, 8), (4, 5, 8))[["salinity"]].load()
    fields = fields.assign_coords(lat=[4, 3, 2, 1, 0], lon=range(0, 360, 45))
    fields["salinity"].attrs["units"] = "days since 1950-01-01"
    fields["projection"] = 0
    encoding = {"time": {"chunks": (1,)}, "lat": {"chunks": (1,)}}
    fields.to_zarr(tmp_path, encoding=encoding, zarr_format=3)
    assert not (tmp_path / "time/c/0").exists()
    assert not (tmp_path / "lat/c/4").exists()
    assert "projection/c" not in damage(str(tmp_path))
    opened = open_fields(open_store(str(tmp_path)))
    assert opened["salinity"].dtype == "float32"
    assert opened["lat"].equals(fields["lat"])
    assert opened["time"].equals(fields["time"])
    for lost in ("lat/c/0", "time/c/2", "lon/c/0"):  # the last one is a whole axis
        content = (tmp_path / lost).read_bytes()
        (tmp_path / lost).unlink()
        with pytest.raises(UserError, match=f"damaged chunks .*'{lost}'"):
            open_fields(open_store(str(tmp_path)))
        (tmp_path / lost).write_bytes(content)

    for file in tmp_path.rglob("zarr.json"):
        file.write_text(file.read_text().replace('"zstd"', '"of_tomorrow"'))
    with pytest.raises(UserError, match=rf"^{tmp_path}: .*of_tomorrow"):
        open_fields(open_store(str(tmp_path)))


def read_all(settings: dict) -> None:
    for split in ("train", "val"):
        dataset = CloudDataset(split, **settings)
        dataset.__getitems__(range(len(dataset)))


def flip_a_bit(path: Path) -> None:
    whole = path.read_bytes()
    values = changed = Zstd().decode(whole)
    # Some bits mean nothing: which one of two equal texts is copied, or some of the first bytes.
    while changed == values:
        content = bytearray(whole)
        bit = random.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            changed = Zstd().decode(bytes(content))
        except RuntimeError:
            return


def test_a_flipped_bit_is_named(tmp_path):
    """In fields, axes and statistics. Broken by: no checksum, no check_chunks, lazy statistics.

    In a chunk beyond the edge of a width that is no multiple of it. Broken by: no `% size`.
    """
    fields = cube_fields((24, 18, 36), (12, 9, 10))
    build(str(tmp_path), fields, (12, 9, 10), PERIODS["train_period"])
    # The windows of both splits have all chunks.
    settings = SETTINGS | {"url": str(tmp_path), "window": (4, 18, 36)}
    settings |= {"train_stride": (4, 18, 36), "val_stride": (4, 18, 36)}
    for number, array in enumerate(sorted(tmp_path.rglob("c"))):
        store = array.parents[1]
        chunks = [path for path in array.rglob("*") if path.is_file()]
        chunk = random.choice(chunks or [array])  # a single number has one file
        whole = chunk.read_bytes()
        flip_a_bit(chunk)
        key = chunk.relative_to(store)
        with pytest.raises(UserError, match=rf"damaged chunks \['{key}'\]"):
            read_all(settings | {"dask": ("none", "threads")[number % 2]})
        chunk.write_bytes(whole)

    flip_a_bit(tmp_path / "salinity/c/0/0/0")
    window = [slice(0, 4), slice(0, 8), slice(30, 38)]
    bad = bad_chunks(open_store(str(tmp_path)), "salinity", window)
    assert list(bad) == ["salinity/c/0/0/0"]


def test_check_names_and_mends(monkeypatch, tmp_path, capsys):
    """Lost and flipped chunks, and axes. Broken by: no note_damaged_regions, no mend_statistics.

    Or `group.keys()` in create_arrays: the second repair would delete the statistics. Or, in
    note_damaged_regions, the number of an axis' own chunks: it would not write the axes.
    """
    cube = ["cube", "--months=24", "--height=18", "--width=36", "--chunk=[4,9,18]"]
    call(monkeypatch, *cube, f"--url={tmp_path}", script=build_store)
    words = ["statistics", f"--url={tmp_path}", "--train_period=[1900-01,1901-04]"]
    call(monkeypatch, *words, script=build_store)
    before = CloudDataset("train", **(SETTINGS | {"url": str(tmp_path)}))[0][0]
    flip_a_bit(tmp_path / "current_speed/c/5/1/1")
    (tmp_path / "salinity/c/3/0/0").unlink()
    (tmp_path / "sea_surface_height/zarr.json").unlink()
    statistics = tmp_path / "statistics" / "1900-01_1901-04"
    flip_a_bit(statistics / "salinity/climatology/c/0/0/0")
    (statistics / "salinity/mean/c").unlink()
    (statistics / "current_speed/std/zarr.json").unlink()
    capsys.readouterr()
    with pytest.raises(SystemExit, match="1"):
        call(monkeypatch, "check", f"--url={tmp_path}", script=build_store)
    named = capsys.readouterr().out
    assert sorted(named.splitlines()) == [
        "damaged or missing: current_speed/c/5/1/1",
        "damaged or missing: salinity/c/3/0/0",
        "damaged or missing: sea_surface_height/zarr.json",
        "damaged or missing: statistics/1900-01_1901-04/current_speed/std/zarr.json",
        "damaged or missing: statistics/1900-01_1901-04/salinity/climatology/c/0/0/0",
        "damaged or missing: statistics/1900-01_1901-04/salinity/mean/c",
    ]
    call(monkeypatch, "check", f"--url={tmp_path}", "--repair=true", script=build_store)
    assert "all chunks are there" in capsys.readouterr().out
    flip_a_bit(tmp_path / "lat/c/0")
    flip_a_bit(tmp_path / "time/c/0")
    (statistics / "zarr.json").unlink()
    call(monkeypatch, "check", f"--url={tmp_path}", "--repair=true", script=build_store)
    assert "all chunks are there" in capsys.readouterr().out
    assert (statistics / "zarr.json").exists()
    after = CloudDataset("train", **(SETTINGS | {"url": str(tmp_path)}))[0][0]
    np.testing.assert_array_equal(before, after)

    # Of a store that is not ours, nobody knows for which variables they were.
    del zarr.open_group(tmp_path, mode="r+").attrs["command"]
    flip_a_bit(statistics / "salinity/climatology/c/0/0/0")
    with pytest.raises(UserError, match="run `statistics` again"):
        call(
            monkeypatch,
            "check",
            f"--url={tmp_path}",
            "--repair=true",
            script=build_store,
        )


def test_data_that_cannot_be_trained_on(tmp_path):
    """Broken by: no isfinite in write_statistics: all samples would be land; no check_dates."""
    fields = cube_fields((24, 8, 8), (12, 8, 8))[["salinity"]]
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
    """Nor computed again. Broken by: UserError for NoStoreError in build.py, or in statistics.py.

    Nor computed where they cannot be written. Broken by: no open_group in add_statistics.
    """
    monkeypatch.setattr("dask.compute", Mock(side_effect=AssertionError))
    settings = {"train_period": PERIODS["train_period"]}
    settings |= {"patience": 1} if kind == "stall" else {}
    proxy.faults = [Fault(kind, math.inf, "statistics/zarr.json")]
    with pytest.raises(UserError, match=r"PermissionError|no answer in 1 s"):
        add_statistics(URL, **settings, again=True)
    proxy.faults = [Fault(kind, math.inf, "1901-04/salinity")]
    expected = "access denied" if kind == "403" else "no answer in 1 s"
    with pytest.raises(UserError, match=expected):
        add_statistics(URL, **settings)
    with pytest.raises(UserError, match=expected):
        CloudDataset("train", **(SETTINGS | settings))


def test_statistics_elsewhere_are_read_with_keys(monkeypatch, tmp_path):
    """Those of a public store without. Broken by: anonymous alone in has_public_statistics."""
    whole = tmp_path / "whole"
    build_cube(str(whole))
    to = f"{whole}-statistics"
    add_statistics(str(whole), PERIODS["train_period"], to=to)
    assert not damage(to)
    opened = []

    def noted(url, patience, anonymous):
        opened.append((url.removeprefix(str(whole)), anonymous))
        return open_store(url, patience, anonymous)

    monkeypatch.setattr("src.data.usecase_cloud_dataset.open_store", noted)
    settings = SETTINGS | {"url": str(whole), "anonymous": True}
    CloudDataset("train", **settings)
    CloudDataset("train", **settings, statistics_store=to)
    period = "statistics/1900-01_1901-04"
    assert {("", True), (f"/{period}/salinity", True)} < {*opened[:5]}
    assert {("", True), (f"-statistics/{period}/salinity", False)} < {*opened[5:]}
