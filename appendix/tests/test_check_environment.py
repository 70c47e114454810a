"""The environment check: each line fails when its fault is there, and says what to do."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import check_environment as check
import pytest


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def full_disk(*_: object) -> SimpleNamespace:
    return SimpleNamespace(free=10**6)


FAULTS = {
    "Python     3": ("sys.version_info", (3, 10, 1), "uv python install"),
    "packages   missing: dask": ("importlib.metadata.distributions", list, "uv sync"),
    "disk       0.0 GB": ("shutil.disk_usage", full_disk, "make room"),
    "127.0.0.1": ("socket.create_server", refuse, "sandbox or firewall"),
    "S3 server": ("subprocess.run", refuse, "uv sync"),
}


@pytest.mark.parametrize("line", FAULTS)
def test_each_fault_is_found(line, monkeypatch, capsys):
    name, value, remedy = FAULTS[line]
    monkeypatch.setattr(name, value)
    assert check.main() == 1
    failed = [
        text
        for text in capsys.readouterr().out.splitlines()
        if text.startswith("not ok")
    ]
    assert len(failed) == 1
    assert line in failed[0]
    assert remedy in failed[0]


def test_it_runs_without_the_packages():
    """A reader starts it when something is wrong: it needs nothing but Python to begin."""
    command = [sys.executable, "-S", str(Path(check.__file__))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "not ok  packages" in done.stdout
    assert not done.stderr
