"""Uploads to a real S3 server: what arrives, in which order, and what does not."""

from pathlib import Path

import pytest
import torch
from src.callbacks import CloudUploadCallback
from src.checkpoint_files import identify
from src.cloud_folder import CloudFolder, etag, full_url
from src.cloud_run import CloudRun, fetch, read_copies
from src.data.cloud_errors import CloudError
from src.data.cloud_store import SILENCE
from src.data.s3_proxy import Fault
from src.errors import UserError

from tests.cloud_runs import copies, latest, objects, save, upload, writer
from tests.cloud_runs import path as path  # fixtures
from tests.cloud_runs import run as run
from tests.cloud_server import files
from tests.cloud_server import proxy as proxy
from tests.cloud_server import server as server

GOES_TOGETHER = ["last", "metrics"]  # config.yaml stays as it is


def test_object_first_then_the_list_then_the_deletions(proxy, path, run):
    copy = writer(path)
    for step in (1, 2):
        upload(copy, run, step)
    proxy.requests.clear()
    upload(copy, run, 3)
    written = [r.path.rpartition("/")[2] for r in proxy.requests if r.method == "PUT"]
    deleted = [r.path.rpartition("/")[2] for r in proxy.requests if r.method == "DELETE"]
    assert [name.partition("-")[0] for name in written] == [*GOES_TOGETHER, "latest.json"]
    order = [r.method for r in proxy.requests if r.method in ("PUT", "DELETE")]
    assert order == ["PUT"] * 3 + ["DELETE"] * len(deleted)
    assert {name.partition("-")[0] for name in deleted} == set(GOES_TOGETHER)
    assert copies(path) == [("last.ckpt", 3), ("last.ckpt", 2)]


def test_the_list_says_what_is_there(server, path, run):
    copy = writer(path)
    upload(copy, run, 7)
    head = latest(path)
    saved = run / "checkpoints" / "last.ckpt"
    assert (head["name"], head["step"], head["size"]) == ("last.ckpt", 7, saved.stat().st_size)
    assert len(head["sha256"]) == 64
    assert set(head["files"]) == {"config.yaml", "metrics.csv"}
    named = {head["object"], *(file["object"] for file in head["files"].values())}
    assert set(objects(path)) == {"latest.json", "run.json", *named}


def test_what_a_killed_process_has_left_is_swept(server, path, run):
    """An object that no list names, and a part of a listed run stays."""
    upload(writer(path), run, 1)
    before = objects(path)
    files().pipe(f"{path}/last-000000009-deadbeef.ckpt", b"half")
    writer(path).sweep()
    assert objects(path) == before


def test_retention_keeps_each_name_apart(server, path, run):
    copy = writer(path)
    upload(copy, run, 1, "best.ckpt")
    for step in (2, 3, 4):
        upload(copy, run, step)
    assert copies(path) == [("last.ckpt", 4), ("last.ckpt", 3), ("best.ckpt", 1)]
    assert sum(name.endswith(".ckpt") for name in objects(path)) == 3


def test_comes_back_to_the_bit(server, path, run, tmp_path):
    copy = writer(path)
    upload(copy, run, 3, "best.ckpt")
    upload(copy, run, 5)
    fetch(copy.folder, tmp_path / "again")
    for name in ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "config.yaml", "metrics.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.slow(copies=True)
def test_a_damaged_copy_is_skipped_and_named(server, path, run, tmp_path):
    copy = writer(path)
    for step in (1, 2):
        upload(copy, run, step)
    newest = latest(path)["object"]
    content = bytearray(files().cat(f"{path}/{newest}"))
    content[len(content) // 2] ^= 1
    files().pipe(f"{path}/{newest}", bytes(content))
    said = fetch(copy.folder, tmp_path / "again")
    assert newest in said[0]
    assert "damaged" in said[0]
    assert "step 1" in said[1]


def test_two_checkpoints_of_one_step_have_their_own_metrics(server, path, run, tmp_path):
    """The last one comes after the best one, when metrics.csv has a row more."""
    copy = writer(path)
    upload(copy, run, 4, "best.ckpt")
    upload(copy, run, 4)
    files().rm(f"{path}/{latest(path)['object']}")
    said = fetch(copy.folder, tmp_path / "again")
    assert "is not there" in said[0]
    assert (tmp_path / "again" / "metrics.csv").read_text() == "step\n1\n4\n"
    assert "downloaded best-000000004" in said[1]


def test_what_arrives_damaged_never_counts(proxy, path, run, monkeypatch):
    """The object differs from the file, as after a fault that no checksum on the way has seen."""
    copy = writer(path)
    upload(copy, run, 1)
    original = copy.folder.fs._put_file

    async def damaging(local: str, there: str, **settings: object) -> None:
        other = Path(f"{local}.other")
        other.write_bytes(Path(local).read_bytes()[:-1] + b"x")
        await original(str(other), there, **settings)
        other.unlink()

    monkeypatch.setattr(copy.folder.fs, "_put_file", damaging)
    with pytest.raises(CloudError, match="arrived damaged"):
        upload(copy, run, 2)
    assert copies(path) == [("last.ckpt", 1)]


@pytest.mark.parametrize("size", [1000, 40 * 2**20], ids=["one piece", "parts"])
def test_the_etag_is_computed_as_s3_does(server, path, tmp_path, size):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(250)) * (size // 250))
    files().put_file(str(file), f"{path}/file", chunksize=16 * 2**20)
    assert files().info(f"{path}/file")["ETag"].strip('"') == etag(file)


FAULTS = [("503", "PUT"), ("reset", "PUT"), ("503", "HEAD"), ("reset", "GET"), ("503", "DELETE")]


@pytest.mark.parametrize(("kind", "method"), FAULTS)
def test_faults_that_pass_are_tried_again(proxy, path, run, kind, method):
    copy = writer(path, keep=1)
    upload(copy, run, 1)
    proxy.faults.append(Fault(kind, method=method, times=2))
    upload(copy, run, 2)
    assert proxy.faults[0].taken == 2
    assert copies(path) == [("last.ckpt", 2)]


def test_a_hang_ends_at_the_deadline(proxy, path, run):
    copy = writer(path)
    upload(copy, run, 1)
    proxy.faults.append(Fault("stall", method="PUT", times=None))
    file = save(run, 2)
    with pytest.raises(CloudError, match="no answer within 2 s"):
        copy.save(file, identify(file, "last.ckpt", 2, []), run, 2.0)
    proxy.faults.clear()
    assert copies(path) == [("last.ckpt", 1)]


@pytest.mark.slow(copies=True)
def test_a_body_that_stalls_is_sent_again(proxy, path, run, monkeypatch):
    """Too large for the buffers on the way, so that nobody waits for an answer yet."""
    monkeypatch.setattr("src.cloud_folder.STALL", 1.0)
    monkeypatch.setattr("src.cloud_folder.SLOWEST", 2**30)
    large = run / "checkpoints" / "last.ckpt"
    torch.save({"weights": torch.zeros(3_000_000)}, large)
    copy = writer(path)
    proxy.faults.append(Fault("stall", method="PUT", path_contains="last-"))
    copy.save(large, identify(large, "last.ckpt", 2, []), run, SILENCE - 1)
    assert copies(path) == [("last.ckpt", 2)]


def test_two_runs_cannot_overwrite_each_other(server, path, run):
    upload(writer(path, "one"), run, 1)
    with pytest.raises(CloudError, match="belongs to another run; choose another name"):
        writer(path, "two")


def test_the_process_that_took_over_is_the_one_that_writes(server, path, run):
    """A job that hung, and was requeued, must not write over what its successor has done."""
    first = writer(path)
    upload(first, run, 1)
    second = writer(path)
    upload(second, run, 5)
    with pytest.raises(CloudError, match="continued by another process"):
        upload(first, run, 2)
    assert copies(path)[0] == ("last.ckpt", 5)


BAD = [
    (["upload_interval=0"], "upload_interval: 0 is too small"),
    (["cloud_storage_path=ftp://x/y"], "is no address of filesystem s3"),
    (["cloud_storage_path=s3://key:secret@bucket/x"], "credentials do not belong into a URL"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad_input_is_one_line(given, message):
    arguments = dict(one.split("=", 1) for one in given)
    values = {key: int(value) if value.isdigit() else value for key, value in arguments.items()}
    with pytest.raises(UserError, match=message) as error:
        CloudUploadCallback(**{"cloud_storage_path": "s3://bucket/x"} | values)
    assert "secret@" not in str(error.value)


def test_addresses(tmp_path, monkeypatch):
    """As a user may write them; what is printed serves from everywhere."""
    monkeypatch.chdir(tmp_path)
    assert full_url("bucket/x/", "s3") == "s3://bucket/x"
    assert full_url("nas/x", "local") == full_url("file://nas/x", "local")
    assert full_url("nas/x", "local") == f"file://{tmp_path}/nas/x"
    azure = "abfs://container@account.dfs.core.windows.net/x"
    assert full_url(azure, "abfs") == azure
    with pytest.raises(CloudError, match="credentials do not belong"):
        full_url("abfs://container:secret@account.dfs.core.windows.net/x", "abfs")


def test_a_local_folder_is_a_cloud_as_well(run, tmp_path):
    copy = CloudRun(CloudFolder(str(tmp_path / "nas"), "local"), "one", 2)
    copy.folder.probe("probe", 5.0)
    copy.claim()
    for step in (1, 2, 3):
        upload(copy, run, step)
    assert [c.step for c in read_copies(copy.folder)] == [3, 2]
    assert not list((tmp_path / "nas").glob("*.part"))
