"""The environment check: each line fails when its fault is there, and says what to do."""

import os
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import check_environment as check
import pytest

Usage = namedtuple("Usage", "total used free")
VERSIONS = {"torch": "1.0"}


def no_connection(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def full_disk(*_: object, **__: object) -> Usage:
    return Usage(10**9, 10**9, 10**6)


def fake(name: str, value: object) -> object:
    """A change of the machine, for one test."""
    return lambda patch, _: patch.setattr(name, value, raising=False)  # not all systems have all


def old_torch(patch: pytest.MonkeyPatch, _: Path) -> None:
    original = check.importlib.metadata.version
    patch.setattr(
        check.importlib.metadata, "version", lambda name: VERSIONS.get(name) or original(name)
    )


def no_weed(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(check.sys, "executable", str(folder / "python"))
    patch.setenv("PATH", str(folder))


def broken_weed(patch: pytest.MonkeyPatch, folder: Path) -> None:
    no_weed(patch, folder)
    (folder / "weed").write_text("not a binary\n")
    (folder / "weed").chmod(0o755)


def driver_without_device(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setattr("torch.cuda.is_available", lambda: False)
    patch.setattr("torch.backends.mps.is_available", lambda: False)
    patch.setattr(check, "driver", lambda: "470.1")


def full_shared_memory(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setattr("pathlib.Path.is_dir", lambda _: True)
    patch.setattr("shutil.disk_usage", full_disk)


def few_files(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setattr("resource.getrlimit", lambda _: (256, 4096))


FAULTS = [
    ("Python", fake("sys.version_info", (3, 10, 1)), "not ok", "3.10.1", "Python 3.11"),
    ("Python", fake("sys.version_info", (3, 11, 11)), "warning", "3.11.11", "Python 3.11.12"),
    ("Python", fake("sys.version_info", (3, 11, 12)), "OK", "3.11.12", ""),
    ("packages", old_torch, "not ok", "torch is 1.0, not >=2", "uv sync"),
    ("processor", fake("os.sched_getaffinity", lambda _: {0}), "warning", "1 cores", "one core"),
    (
        "memory",
        fake("psutil.virtual_memory", lambda: namedtuple("M", "available total")(10**9, 2 * 10**9)),
        "not ok",
        "1.0 of 2.0 GB free",
        "close something",
    ),
    ("GPU", driver_without_device, "warning", "driver 470.1, but PyTorch", "update the driver"),
    ("disk", fake("shutil.disk_usage", full_disk), "not ok", "0.0 GB free", "make room"),
    ("disk", fake("tempfile.TemporaryFile", no_connection), "not ok", "denied", "right to write"),
    ("shared memory", full_shared_memory, "warning", "0.0 GB", "--shm-size"),
    ("ports", fake("socket.create_server", no_connection), "not ok", "denied", "listen on 127"),
    (
        "ports",
        lambda patch, _: (patch.setenv("http_proxy", "http://x"), patch.setenv("no_proxy", "y")),
        "warning",
        "http_proxy is set, also for 127.0.0.1",
        "no_proxy=127.0.0.1",
    ),
    ("open files", few_files, "warning", "256 in one process", "ulimit -n 4096"),
    ("compiler", no_weed, "warning", "no C++ compiler", "install one"),
    ("S3 server", no_weed, "not ok", "not there", "uv sync"),
    ("S3 server", broken_weed, "not ok", "does not start", "another server"),
    ("wandb", lambda patch, _: patch.setenv("WANDB_MODE", "on"), "not ok", "=on", "offline"),
    (
        "wandb",
        lambda patch, folder: (
            patch.setenv("WANDB_MODE", "online"),
            patch.setenv("HOME", str(folder)),
        ),
        "warning",
        "without a key",
        "wandb login",
    ),
]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Nothing of this machine's own variables."""
    for name in (*check.PROXIES, "no_proxy", "NO_PROXY", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch, tmp_path


@pytest.mark.parametrize(("name", "fault", "verdict", "found", "todo"), FAULTS)
def test_each_fault_is_found(machine, name, fault, verdict, found, todo):
    import psutil  # noqa: F401  before something is put into its place
    import torch  # noqa: F401

    fault(*machine)
    finding = check.CHECKS[name]()
    assert finding.verdict == verdict
    assert found in finding.found
    assert todo in finding.todo


def test_all_lines_come_whatever_one_of_them_finds(machine, monkeypatch, capsys):
    def breaks() -> check.Finding:
        raise ImportError("torch is broken\nreally")

    monkeypatch.setattr("sys.argv", ["check_environment.py"])
    monkeypatch.setattr(check, "CHECKS", check.CHECKS | {"GPU": breaks})
    assert check.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("not ok   GPU") and "is broken" in line]
    assert sum(line.split()[0] in ("OK", "warning", "not") for line in lines if line) >= 12


def test_it_runs_without_the_packages():
    """A reader starts it when something is wrong: it needs nothing but Python to begin."""
    command = [sys.executable, "-S", str(Path(check.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not ok   packages" in done.stdout
    assert not done.stderr


@pytest.mark.slow
def test_an_old_python_is_told_so(tmp_path):
    """It has no module tomllib, so the check may not ask for one before it has said this."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.version_info = (3, 10, 1, 'final', 0)\nsys.modules['tomllib'] = None\n"
    )
    command = [sys.executable, str(Path(check.__file__))]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "not ok   Python         3.10.1" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_listens_afterwards():
    number = check.ports().found.rpartition(" ")[2].rstrip(")")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(number)), timeout=5)
