"""An empty git repository, and how it is committed to."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """The folder of a new repository, whatever the settings of this machine are."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # under a hook they name the repository that is tested
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def commit() -> Callable[[Path], None]:
    """Commits all that is in a repository."""

    def all_files(root: Path) -> None:
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", "add", "."], cwd=root, check=True)
        subprocess.run([*words, "commit", "-qm", "all"], cwd=root, check=True)

    return all_files
