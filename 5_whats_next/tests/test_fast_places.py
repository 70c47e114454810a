"""Where the fast reader can read: S3 is in all other tests, local disks too; here the others."""

import functools
import http.server
import subprocess
import sys
import threading

import pytest
from src.config import CHAPTER
from src.data.cloud_errors import CloudError
from src.data.fast_store import key_value_store

from tests.cloud_stores import small_store

PLACES = {
    "gs://bucket/x/": {"driver": "gcs", "bucket": "bucket", "path": "x/"},
    "https://host.org/data/x/": {
        "driver": "http",
        "base_url": "https://host.org",
        "path": "/data/x/",
    },
    "/data/x/": {"driver": "file", "path": "/data/x/"},
}


@pytest.mark.parametrize("place", PLACES)
def test_other_places(place):
    assert key_value_store(place, anonymous=False) == PLACES[place]


def test_place_that_tensorstore_does_not_know():
    with pytest.raises(CloudError, match=r"does not read az://; allowed: s3, gs, https and local"):
        key_value_store("az://container/x/", anonymous=False)


class Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass


READ = """
import sys
from src.data.fast_dataset import FastDataset
from tests.cloud_stores import SMALL, assert_same_samples, dataset
url, local = sys.argv[1:]
assert_same_samples(FastDataset("train", url=url, **SMALL), dataset(local))
print("the same")
"""


@pytest.mark.slow
def test_http(tmp_path):
    """From a plain web server; in a process of its own, which leaves fsspec's connections to it."""
    small_store(str(tmp_path / "small.zarr"))
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/small.zarr"
            command = [sys.executable, "-c", READ, url, str(tmp_path / "small.zarr")]
            done = subprocess.run(command, cwd=CHAPTER, capture_output=True, text=True, check=False)
        finally:
            server.shutdown()
    assert done.stdout.strip() == "the same", done.stderr
