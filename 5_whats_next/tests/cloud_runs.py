"""Helpers of the tests that upload: a tiny run, whose checkpoints go to a server of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from src.cloud_folder import CloudFolder
from src.cloud_run import read_copies
from src.data import cloud_store
from src.data.s3_proxy import FaultyProxy
from src.data.s3_server import connect, disconnect

from tests.cloud_server import files
from tests.lightning_runs import SCRIPT
from tests.runs import TINY

EVERY = ["--trainer.checkpoint_every_n_steps=1", "--trainer.upload_every_n_steps=1"]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory) -> Iterator[dict[str, str]]:
    """An S3 server like any other, that the environment names, with an empty bucket."""
    folder = tmp_path_factory.mktemp("s3")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("CONFIG", "SHARED_CREDENTIALS"):
            monkeypatch.setenv(f"AWS_{name}_FILE", str(folder / "none"))
        for name in ("PROFILE", "SESSION_TOKEN", "ENDPOINT_URL_S3"):
            monkeypatch.delenv(f"AWS_{name}", raising=False)
        monkeypatch.setattr(cloud_store, "load_dotenv", lambda: None)
        variables = connect(folder)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        files().mkdir("bucket")
        yield variables
    disconnect(folder)


@pytest.fixture
def proxy(cloud, monkeypatch) -> Iterator[FaultyProxy]:
    """The way to the server."""
    with FaultyProxy(cloud["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def path(tmp_path) -> str:
    """A folder in the bucket that no other test has."""
    return f"s3://bucket/{tmp_path.name}"


def run_process(output: Path, path: str, *arguments: str, **settings) -> subprocess.Popen:
    """lightning_train.py as a process: the run ``output/run`` with its copy in ``path``."""
    command = [sys.executable, str(SCRIPT), *TINY, *EVERY, f"--trainer.output_dir={output}"]
    command += ["--trainer.run_name=run", f"--trainer.cloud_storage_path={path}", *arguments]
    settings["env"] = os.environ | {"WANDB_MODE": "disabled"} | settings.pop("env", {})
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | settings
    return subprocess.Popen(command, **settings)


def copies(path: str) -> list[tuple[str, int]]:
    """Names and steps of the checkpoints that the cloud says it has."""
    return [(copy.name, copy.step) for copy in read_copies(CloudFolder(path))]


def objects(path: str) -> list[str]:
    """What lies in a folder of the cloud."""
    fs = files()
    return sorted(name.rpartition("/")[2] for name in fs.find(path.removeprefix("s3://")))


def latest(path: str) -> dict:
    return json.loads(files().cat(f"{path}/latest.json"))
