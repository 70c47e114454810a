"""Building stores: interrupted anywhere, with any number of threads, the same bytes."""

import hashlib
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from src.config import CHAPTER
from src.data import cloud_build
from src.data.cloud_build import build_store, objects_of
from src.data.cloud_errors import CloudError
from src.data.cube import VARIABLES, Cube

from tests.cloud_stores import dataset, small_fields, small_store

CUBE = Cube(months=24, height=20, width=30, seed=3)


def digest(folder: Path) -> dict[str, str]:
    """The checksum of every object of a store on disk.

    A kill may leave a file behind that zarr was just writing; it has a name that nobody reads.
    """
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".partial"
    }


def build_cube(place: Path, **settings) -> None:
    settings = {"train_months": (0, 12), "chunk": (5, 8, 8)} | settings
    build_store(str(place), CUBE.fields(settings.get("shard") or settings["chunk"]), **settings)


def test_chunks_of_the_cube_are_a_function_of_their_place():
    """Whatever block is asked for, in whatever order."""
    whole = (slice(0, 24), slice(0, 20), slice(0, 30))
    for name in VARIABLES:
        values = CUBE.block(name, *whole)
        part = CUBE.block(name, slice(7, 9), slice(3, 11), slice(13, 30))
        np.testing.assert_array_equal(part.view(np.int32), values[7:9, 3:11, 13:30].view(np.int32))
        again = Cube(24, 20, 30, seed=3).block(name, *whole)
        np.testing.assert_array_equal(values.view(np.int32), again.view(np.int32))
        other = Cube(24, 20, 30, seed=4).block(name, *whole)
        assert not np.array_equal(np.isnan(values), np.isnan(other))
        assert 0.1 < np.isnan(values).mean() < 0.6
        # Neighbours resemble each other across the edge of the globe as they do elsewhere.
        steps = np.abs(np.diff(values, axis=2, append=values[..., :1]))
        assert np.nanmean(steps[..., -1]) < 2 * np.nanmean(steps)


def test_same_bytes_with_any_number_of_threads(tmp_path):
    for threads in (1, 3):
        build_cube(tmp_path / str(threads), threads=threads)
    assert digest(tmp_path / "1") == digest(tmp_path / "3")


@pytest.mark.slow(copies=True)
def test_sharded_store_has_the_same_values(tmp_path):
    build_cube(tmp_path / "chunks")
    build_cube(tmp_path / "shards", chunk=(5, 4, 4), shard=(10, 8, 8))
    ours, theirs = (
        xr.open_zarr(tmp_path / name, consolidated=False).load() for name in ("shards", "chunks")
    )
    xr.testing.assert_equal(ours, theirs)
    objects = len(list((tmp_path / "shards" / "salinity" / "c").rglob("*")))
    assert objects < len(list((tmp_path / "chunks" / "salinity" / "c").rglob("*")))


KILL = """
import os, signal, sys
sys.path.insert(0, {chapter!r})
from tests.test_cloud_build import build_cube, Path
from src.data.cube import Cube
block, calls = Cube.block, []
def counted(self, *place):
    calls.append(place)
    if len(calls) == {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    return block(self, *place)
Cube.block = counted
build_cube(Path({place!r}))
"""


@pytest.mark.slow
def test_killed_build_is_no_store_and_goes_on(tmp_path, monkeypatch):
    """SIGKILL in the middle; what is there already is not computed again."""
    place = tmp_path / "killed"
    code = KILL.format(chapter=str(CHAPTER), place=str(place), after=40)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with pytest.raises(CloudError, match="this store is not finished; run its build command again"):
        dataset(str(place))
    block, calls = Cube.block, []

    def counted(self, *arguments):
        calls.append(arguments)
        return block(self, *arguments)

    monkeypatch.setattr(Cube, "block", counted)
    build_cube(place)
    build_cube(tmp_path / "straight")
    total = objects_of(CUBE.fields((5, 8, 8)), (5, 8, 8), None)[0]
    assert len(calls) - total <= total - 40 + 3 * 4 + 2  # some months, and what was in flight
    assert digest(place) == digest(tmp_path / "straight")


def test_finished_store_is_left_alone_and_another_one_refused(tmp_path, monkeypatch):
    place = str(tmp_path / "store")
    small_store(place)
    before = digest(tmp_path / "store")
    monkeypatch.setattr(cloud_build, "write_template", None)  # would raise
    small_store(place)
    assert digest(tmp_path / "store") == before
    with pytest.raises(CloudError, match="there is another store here; --overwrite replaces it"):
        small_store(place, small_fields(seed=1))
    monkeypatch.undo()
    small_store(place, small_fields(seed=1), overwrite=True)
    assert digest(tmp_path / "store") != before


@pytest.mark.parametrize(
    ("settings", "chunk"), [({"months": 36}, (5, 8, 8)), ({}, (5, 8, 16)), ({"seed": 4}, (5, 8, 8))]
)
def test_other_cubes_are_other_stores(tmp_path, settings, chunk):
    """Another length, other chunks, another seed."""
    place = str(tmp_path / "store")
    build_cube(tmp_path / "store")
    other = Cube(**({"months": 24, "height": 20, "width": 30, "seed": 3} | settings))
    with pytest.raises(CloudError, match="there is another store here"):
        build_store(place, other.fields(chunk), (0, 12), chunk)


def test_a_lost_chunk_is_made_good(tmp_path, monkeypatch):
    """By whoever builds the store again; the file of a write that was killed is not it."""
    small_store(str(tmp_path / "store"))
    before = digest(tmp_path / "store")
    for state in (True, False):  # complete or not
        group = zarr.open_group(str(tmp_path / "store"), mode="r+")
        group.attrs["complete"] = state
        chunk = tmp_path / "store" / "a" / "c" / "1" / "1" / "1"
        partial = chunk.rename(chunk.with_name("1.0123456789abcdef.partial"))
        small_store(str(tmp_path / "store"))
        partial.unlink()
        assert digest(tmp_path / "store") == before


def test_statistics_do_not_read_a_lost_chunk_as_land(tmp_path, monkeypatch):
    small_store(str(tmp_path / "store"))
    monkeypatch.setattr(cloud_build, "write_regions", lambda *_: None)  # it would make it good
    (tmp_path / "store" / "a" / "c" / "1" / "1" / "1").unlink()
    with pytest.raises(CloudError, match="chunk 1/1/1 of the array a is missing"):
        small_store(str(tmp_path / "store"), train_months=(0, 8))


def test_a_kill_while_an_old_store_is_deleted(tmp_path, monkeypatch):
    """What is left of it is not complete."""
    place = str(tmp_path / "store")
    small_store(place)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cloud_build, "write_template", killed)
    with pytest.raises(KeyboardInterrupt):
        small_store(place, small_fields(seed=1), overwrite=True)
    with pytest.raises(CloudError, match="not finished"):
        dataset(place)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CloudError, match="there is something else here; --overwrite replaces it"):
        small_store(str(tmp_path))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_killed_before_all_arrays_are_there(tmp_path):
    """The template is written array by array."""
    small_store(str(tmp_path / "straight"))
    place = tmp_path / "killed"
    shutil.copytree(tmp_path / "straight", place)
    shutil.rmtree(place / "b")
    group = zarr.open_group(str(place), mode="r+")
    group.attrs["complete"] = False
    small_store(str(place))
    assert digest(place) == digest(tmp_path / "straight")


def test_full_disk_leaves_no_finished_store(tmp_path, monkeypatch):
    """An error while the statistics are written: they are last."""
    place = str(tmp_path / "store")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cloud_build, "write_statistics", full)
    with pytest.raises(OSError, match="No space"):
        small_store(place)
    with pytest.raises(CloudError, match="not finished"):
        dataset(place)
    monkeypatch.undo()
    small_store(place)
    assert len(dataset(place))


def test_fill_values_are_written(tmp_path):
    """A chunk that is all land is an object too: what is missing is then always a loss."""
    fields = small_fields()
    fields["a"][:5, :4, :7] = np.nan
    small_store(str(tmp_path / "store"), fields)
    assert (tmp_path / "store" / "a" / "c" / "0" / "0" / "0").exists()
    number, _ = objects_of(fields, (5, 4, 7), None)
    found = [p for name in "ab" for p in (tmp_path / "store" / name / "c").rglob("*")]
    assert sum(path.is_file() for path in found) == number


@pytest.mark.parametrize("months", [(5, 5), (-1, 6), (0, 25)])
def test_training_periods_outside_the_data(tmp_path, months):
    with pytest.raises(CloudError, match="is not a period within the 24 months of the data"):
        small_store(str(tmp_path / "store"), train_months=months)
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_cube(tmp_path):
    """Five times as many months: what is allocated at the same time stays the same."""
    peaks = []
    for months in (36, 180):
        cube = Cube(months, height=90, width=180, seed=0)
        tracemalloc.start()
        build_store(str(tmp_path / str(months)), cube.fields((12, 45, 90)), (0, 12), (12, 45, 90))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    # Half of the four variables: on busy cores more blocks wait for each other.
    assert peaks[1] < 180 * 90 * 180 * 4 * 4 / 2
