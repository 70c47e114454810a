"""Helpers of the tests that upload: what lies in the cloud."""

import json

import pytest
from src.cloud_folder import CloudFolder
from src.cloud_run import read_copies

from tests.cloud_server import files


@pytest.fixture
def path(tmp_path) -> str:
    """A folder in the bucket that no other test has."""
    return f"s3://bucket/{tmp_path.name}"


def copies(path: str) -> list[tuple[str, int]]:
    """Names and steps of the checkpoints that the cloud says it has."""
    return [(copy.name, copy.step) for copy in read_copies(CloudFolder(path))]


def objects(path: str) -> list[str]:
    """What lies in a folder of the cloud."""
    fs = files()
    return sorted(name.rpartition("/")[2] for name in fs.find(path.removeprefix("s3://")))


def latest(path: str) -> dict:
    return json.loads(files().cat(f"{path}/latest.json"))
