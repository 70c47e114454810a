"""The four ways to read are compared in what they read, and measured in what they cost."""

import dask_modes
import pytest
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError

from tests.cloud_stores import small_fields, small_store


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    """A store that the default windows and months fit into: the command takes no others."""
    place = str(tmp_path_factory.mktemp("store") / "wide.zarr")
    small_store(place, small_fields(54, 20, 40), train_months=(0, 30), chunk=(12, 16, 32))
    return place


@pytest.mark.slow
def test_table(url, capsys):
    dask_modes.measure(url, batch_size=2, batches=2, rounds=1, threads=2)
    lines = capsys.readouterr().out.splitlines()[-6:]
    rows = {line[:20].split()[0]: line.split() for line in lines[1:]}
    assert list(rows) == ["none", "single-threaded", "threads", "cluster", "nothing"]
    memory = {name: float(row[-1]) for name, row in rows.items()}
    assert memory["none"] > memory["nothing"] > 100
    assert memory["cluster"] > 1.5 * memory["threads"]  # a process more
    assert all(float(rows[name][2]) > 0 for name in ("none", "threads", "cluster"))
    assert rows["cluster"][3] == "elsewhere"


def test_other_samples_are_found(url, monkeypatch):
    """A way that is fast because it reads something else."""
    original = CloudDataset.__getitems__

    def shifted(dataset, indices):
        if dataset.dask == "threads":
            indices = [(index + 1) % len(dataset) for index in indices]
        return original(dataset, indices)

    monkeypatch.setattr(dask_modes, "get_args", lambda _: ("none", "threads"))
    monkeypatch.setattr(CloudDataset, "__getitems__", shifted)
    with pytest.raises(UserError, match="do not read the same samples"):
        dask_modes.measure(url, batch_size=1, batches=1, rounds=1)


def test_a_cluster_of_somebody_else(url, monkeypatch):
    """Its processes may have read other things before; an empty variable names none."""
    monkeypatch.setattr(dask_modes, "get_args", lambda _: ("none",))
    monkeypatch.setattr(dask_modes, "in_own_process", lambda *_: 0.0)  # the memory takes long
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "")
    dask_modes.measure(url, batch_size=1, batches=1, rounds=1)
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")
    with pytest.raises(UserError, match="DASK_SCHEDULER_ADDRESS: allowed here: not set"):
        dask_modes.measure(url, batch_size=1, batches=1, rounds=1)
