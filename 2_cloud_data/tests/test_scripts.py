"""The scripts beside the training: the blog's table, and data behind a service."""

import sys
import types

import chunk_size
import example_cloud_access
import numpy as np
import pytest
import usecase_API_access
import usecase_cloud_access
from src.data.store import open_fields, open_store

from tests.runs import call

# As the blog prints it.
TABLE = """
chunk_size minimal_chunks maximal_chunks minimal_bytes maximal_bytes 8x8 64 81 4096 5184
16x16 16 25 4096 6400 32x32 4 9 4096 9216 64x64 1 4 4096 16384 128x128 1 4 16384 65536
256x256 1 4 65536 262144 512x512 1 4 262144 1048576 1024x1024 1 4 1048576 4194304
"""


def test_chunk_sizes_are_those_of_the_blog(monkeypatch, tmp_path, capsys):
    """And the mean is that of all starts. Broken by: ceil(w / c) + 1 for maximal."""
    monkeypatch.setattr(chunk_size, "CHAPTER", tmp_path)
    call(monkeypatch, script=chunk_size)
    assert capsys.readouterr().out.split()[:45] == TABLE.split()
    assert (tmp_path / "output" / "chunk_size" / "chunk_size.png").exists()
    touched = [len({i // 24 for i in range(start, start + 12)}) for start in range(24)]
    assert chunk_size.cost([12], 2.0, 4)["mean_chunks"] == pytest.approx(np.mean(touched))


def test_access_scripts_run(monkeypatch, capsys):
    call(monkeypatch, script=example_cloud_access)
    call(monkeypatch, script=usecase_cloud_access)
    assert "in chunks of (54, 18, 72)" in capsys.readouterr().out


def test_a_service_is_asked_once_for_each_month(monkeypatch, tmp_path, capsys):
    """After a failure, too. Broken by: no `if not page.exists()`; no retry."""
    fields = usecase_cloud_access.open_fields(open_store("s3://embedded/ocean.zarr")).load()
    fields = fields.rename(surface_temperature="analysed_sst", lat="latitude", lon="longitude")
    months, failures = [], [OSError("busy"), OSError("busy")]

    def open_dataset(start_datetime: str, end_datetime: str, **_: object):
        months.append(start_datetime[:7])
        if start_datetime == "2008-03-01" and failures:
            raise failures.pop()
        return fields.sel(time=slice(start_datetime, end_datetime))

    monkeypatch.setitem(sys.modules, "stand_in", types.SimpleNamespace(open_dataset=open_dataset))
    monkeypatch.setattr(usecase_API_access.fetch.retry, "sleep", lambda seconds: None)
    monkeypatch.setattr(usecase_API_access.fetch.retry, "stop", lambda state: True)
    words = ["--service=stand_in:open_dataset", "--start=2008-01", "--end=2008-10"]
    words.append(f"--url={tmp_path}/mine.zarr")
    with pytest.raises(OSError, match="busy"):
        call(monkeypatch, *words, script=usecase_API_access)
    assert months == ["2008-01", "2008-02", "2008-03"]
    monkeypatch.setattr(usecase_API_access.fetch.retry, "stop", lambda state: False)
    call(monkeypatch, *words, script=usecase_API_access)
    assert months[3:5] == ["2008-03", "2008-03"]
    assert len(months) == 3 + 2 + 7
    written = open_fields(open_store(f"{tmp_path}/mine.zarr"))["analysed_sst"].values
    expected = fields["analysed_sst"].sel(time=slice("2008-01", "2008-10")).values
    np.testing.assert_array_equal(written, expected)
