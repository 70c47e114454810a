"""The embedded server, and another one that looks at keys and rights as a cloud does."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import s3fs

from src.data.store import embedded_server, file_system
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.config import CHAPTER
from src.run.errors import UserError
from tests.fault_proxy import FaultyProxy
from tests.layouts import SETTINGS, URL, build_small

USER = """import sys; from src.data.s3_server import connect
print(connect()["AWS_ENDPOINT_URL"], flush=True); sys.stdin.read()"""


def begin() -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", USER], cwd=CHAPTER, **pipes)


def server(folder: Path) -> psutil.Process:
    while True:
        for process in psutil.process_iter(["cmdline"]):
            if f"-dir={folder}/data" in (process.info["cmdline"] or []):
                return process


@pytest.mark.slow
def test_users_share_one_server_and_the_last_one_ends_it(monkeypatch, tmp_path):
    """However they end, and after a signal. Broken by: no lock in connect; no loop in keep."""
    monkeypatch.setenv("S3_FOLDER", str(tmp_path))
    users = [begin() for _ in range(3)]
    assert len({user.stdout.readline() for user in users}) == 1
    users.pop().kill()
    first = server(tmp_path)
    keeper = first.parent()
    for process in (keeper, first):
        process.send_signal(signal.SIGTERM)
    first.wait()
    second = server(tmp_path)
    for user in users:
        assert second.is_running()
        user.kill()
    assert not psutil.wait_procs([second, keeper], timeout=100)[1]


def test_another_server(monkeypatch, tmp_path):
    """With keys of a profile, a region, no right to list, and without keys.

    Broken by: keys of the embedded server for all; no region_name; no `when_required`; no
    requester_pays; no `return None` for REFUSED, or one for chunks, too; no `anon`.
    """
    server = embedded_server(URL)
    with FaultyProxy(server["AWS_ENDPOINT_URL"]) as cloud:
        keys = Path(server["AWS_SHARED_CREDENTIALS_FILE"]).read_text()
        (tmp_path / "keys").write_text(keys.replace("default", "me"))
        monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.url)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
        monkeypatch.setenv("AWS_PROFILE", "me")
        monkeypatch.setenv("AWS_REGION", "eu-north-7")
        monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
        s3fs.S3FileSystem.clear_instance_cache()  # it does not look at the environment
        file_system("s3://other")[0].mkdirs("other", exist_ok=True)
        url = build_small("s3://other/small.zarr")
        cloud.hides_absent = True
        dataset = CloudDataset("train", url, **SETTINGS)
        dataset[0]
        assert "x-amz-request-payer" in cloud.headers[-1]
        for headers in cloud.headers:
            assert "/eu-north-7/s3/aws4_request" in headers
            assert "checksum" not in headers.lower()
        cloud.fail(403)
        with pytest.raises(UserError, match=r"s3://other.*/c/0/0/0"):
            dataset[0]
        with pytest.raises(UserError, match="no right to read it"):
            CloudDataset("train", url, anonymous=True, **SETTINGS)
        assert "AWS4" not in cloud.headers[-1]
        cloud.shutdown()
