"""Storage that is out of reach, wrong, slow or full of faults; nothing stays behind."""

import re
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from src.config import CHAPTER
from src.data.s3_proxy import Fault
from src.errors import UserError
from src.preflight import machine, storage
from src.preflight.plan import Finding

from tests.cloud_server import files
from tests.cloud_server import proxy as proxy  # fixtures
from tests.cloud_server import server as server
from tests.cloud_stores import url as url
from tests.preflight_plans import PLACE, assert_fails, checked, left_behind, plan
from tests.preflight_plans import quick as quick  # fixtures
from tests.preflight_plans import real_steps as real_steps

NETWORK = ("data", "write")


@pytest.mark.slow(copies=True)
def test_all_is_well_and_nothing_stays_behind(server, real_steps):
    before = psutil.Process().children(recursive=True)
    folder = set(CHAPTER.glob("output/*"))
    findings = checked()
    assert_fails(findings)
    assert "not checked" not in {finding.state for finding in findings.values()}, findings
    assert "1.05 MB put in" in findings["write"].found
    assert "ms a step (median of 2, one device)" in findings["time"].found
    assert findings["data"].found.startswith("120 and ")
    assert psutil.Process().children(recursive=True) == before
    assert not left_behind()
    assert set(CHAPTER.glob("output/*")) == folder


DOOR = socket.socket()  # bound and not listening: it refuses, and no other process gets the port
DOOR.bind(("127.0.0.1", 0))


def closed_port() -> str:
    return f"http://127.0.0.1:{DOOR.getsockname()[1]}"


FAULTS = {
    "wrong key": ({"AWS_ACCESS_KEY_ID": "planted"}, "access denied", "allow put, get and delete"),
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "planted"}, "access denied", "allow put, get"),
    "closed port": ({"AWS_ENDPOINT_URL": closed_port()}, "Could not connect", "AWS_ENDPOINT_URL"),
    "unknown host": (
        {"AWS_ENDPOINT_URL": "http://nowhere.invalid"},
        "Could not connect",
        "is AWS_ENDPOINT_URL right",
    ),
}


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("case", FAULTS)
def test_storage_out_of_reach(server, monkeypatch, case):
    """The other checks go on; those that need the data say so."""
    environment, found, todo = FAULTS[case]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # The answer comes by itself, on a busy machine after more than the command's five seconds.
    findings = checked(limit=60.0)
    assert_fails(findings, *NETWORK)
    assert found in findings["data"].found
    assert found in findings["write"].found
    assert todo in findings["write"].todo
    assert "planted" not in str(findings)
    assert findings["sample"] == Finding("not checked", "needs data")
    assert findings["time"] == Finding("not checked", "needs model")
    assert findings["devices"].state == "ok"


@pytest.mark.slow(copies=True)
def test_storage_that_never_answers(server, proxy):
    """Without a limit this test would not end."""
    proxy.faults.append(Fault("stall", times=None))
    findings = checked(limit=3.0)
    assert_fails(findings, *NETWORK)
    # By the client's own limit, or by that around it, which comes first on a busy machine.
    for name in NETWORK:
        assert re.search(r"no answer within [23] s", findings[name].found)


@pytest.mark.slow(copies=True)
def test_sample_that_never_comes(server, proxy):
    """The store opens, its chunks do not come; the reader's own patience is longer."""
    proxy.faults.append(Fault("stall", "GET", "/a/c/", times=None))
    # Long enough for a busy machine to open the store.
    findings = checked("--data.dataset.patience=600", limit=8.0)
    assert_fails(findings, "sample")
    assert "no answer within" in findings["sample"].found


def test_no_bucket_is_there(server):
    url = "--data.dataset.url=s3://absent/small.zarr"
    findings = checked(url, cloud_storage_path="s3://absent/checkpoints")
    assert_fails(findings, *NETWORK)
    assert "there is no bucket absent" in findings["data"].found
    assert "make the bucket, or correct trainer.cloud" in findings["write"].todo
    assert not files().exists("absent")


@pytest.mark.slow(copies=True)
def test_object_that_cannot_be_deleted_is_named(server, proxy):
    proxy.faults.append(Fault("503", "DELETE", times=None))
    findings = checked()
    assert_fails(findings, "write")
    assert "checkpoints/preflight-" in findings["write"].found
    assert "delete it, and allow DELETE there" in findings["write"].todo
    assert len(left_behind()) == 1
    files().rm(left_behind())


def test_object_that_reads_back_as_another_is_an_error(server, monkeypatch):
    async def other(*arguments: object) -> bytes:
        return b"other"

    monkeypatch.setattr("s3fs.S3FileSystem._cat_file", other)
    with pytest.raises(UserError, match="reads back as something else"):
        storage.probe(PLACE)
    monkeypatch.undo()
    assert not left_behind()


def test_no_credentials(server, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    findings = checked()
    assert_fails(findings, "credentials", *NETWORK)
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET" in findings["credentials"].todo
    assert findings["write"].todo == storage.SET_KEYS


def test_half_the_credentials_are_a_warning(server, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = machine.variables(plan())
    assert found.state == "warning"
    assert "belong together" in found.found


def test_credentials_in_a_url_are_refused_and_not_told():
    with pytest.raises(UserError, match="credentials do not belong") as caught:
        storage.probe("s3://planted:secret@bucket/x")
    assert "planted" not in str(caught.value)


def test_local_place_for_checkpoints(tmp_path):
    place = tmp_path / "not" / "there"
    found = storage.write(plan(cloud_storage_path=str(place)))
    assert (found.state, list(tmp_path.iterdir())) == ("ok", [])


THREAD_THAT_HANGS = """
import concurrent.futures, threading
import preflight
from src.preflight.plan import within
pool, never = concurrent.futures.ThreadPoolExecutor(1), threading.Event()
check = preflight.Check(lambda plan: within(0.1, lambda: pool.submit(never.wait).result()))
preflight.CHECKS = {"data": check}
findings = preflight.run_checks(None)
print(preflight.table(findings))
preflight.end(1)
"""


@pytest.mark.slow
def test_command_ends_although_a_thread_hangs():
    """Python would wait for the reader's threads, for ever."""
    command = [sys.executable, "-c", THREAD_THAT_HANGS]
    done = subprocess.run(
        command, cwd=CHAPTER, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "not ok       data  no answer within 0.1 s" in done.stdout


@pytest.mark.slow
def test_interrupted_probe_leaves_no_object(server, proxy, tmp_path):
    """Ctrl-C between put and delete."""
    proxy.faults.append(Fault("stall", "GET", "preflight-", times=None))
    code = (
        "from src.errors import one_line_errors\n"
        "from src.preflight.plan import within\n"
        "from src.preflight.storage import probe\n"
        f"with one_line_errors(): within(9, lambda: probe({PLACE!r}, 5))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=CHAPTER)
    proxy.wait_for("GET", "preflight-", timeout=60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not left_behind()
