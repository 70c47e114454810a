"""A run that several test files compare theirs with."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference(tmp_path_factory) -> Path:
    """The folder of an uninterrupted Lightning run of twelve steps, four in each epoch."""
    from tests.lightning_runs import train_lightning  # pytest reads this file before it is there

    output = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert train_lightning(monkeypatch, output) == 0
    return output / "run_1"
