"""CIFAR-10: the binary format, and every way in which the archive can be wrong.

The tests write a miniature archive in the real format; the real one has 60 000 images.
"""

import hashlib
import http.server
import io
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from src.data.cifar10 import FILES, RECORD, CIFAR10Dataset
from src.errors import UserError


def write_archive(path: Path, per_file: int = 4) -> str:
    """A miniature archive of ``per_file`` images a file; returns its MD5 checksum."""
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w:gz") as tar:
        for name in FILES["train"] + FILES["val"]:
            records = rng.integers(0, 256, (per_file, RECORD), dtype=np.uint8)
            member = tarfile.TarInfo(name)
            member.size = records.size
            tar.addfile(member, io.BytesIO(records.tobytes()))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def archive(tmp_path) -> tuple[Path, str]:
    path = tmp_path / "cifar-10-binary.tar.gz"
    return path, write_archive(path)


def test_reads_the_format(archive):
    path, md5 = archive
    train = CIFAR10Dataset("train", str(path), md5=md5)
    val = CIFAR10Dataset("val", str(path), md5=md5)
    assert (len(train), len(val)) == (20, 4)
    assert train.sample_shape == (3, 1, 32, 32)
    # The third image of the second file, byte by byte: a label, then red, green and blue planes.
    with tarfile.open(path) as tar:
        content = tar.extractfile("cifar-10-batches-bin/data_batch_2.bin").read()
    record = np.frombuffer(content, np.uint8)[2 * RECORD : 3 * RECORD]
    x, index = train[6]
    assert index == 6
    restored = (x[:, 0].numpy() * train.std[:, None, None] + train.mean[:, None, None]) * 255
    np.testing.assert_allclose(restored, record[1:].reshape(3, 32, 32), atol=1e-3)


def test_statistics_come_from_the_training_images(archive):
    path, md5 = archive
    train, val = (CIFAR10Dataset(split, str(path), md5=md5) for split in ("train", "val"))
    np.testing.assert_array_equal(train.mean, val.mean)
    pixels = np.stack([train[i][0].numpy() for i in range(len(train))])
    np.testing.assert_allclose(pixels.mean(axis=(0, 2, 3, 4)), 0, atol=1e-4)
    np.testing.assert_allclose(pixels.std(axis=(0, 2, 3, 4)), 1, atol=1e-4)


def test_num_samples(archive):
    path, md5 = archive
    settings = {"path": str(path), "num_samples": 7, "num_val_samples": 3, "md5": md5}
    assert len(CIFAR10Dataset("train", **settings)) == 7
    assert len(CIFAR10Dataset("val", **settings)) == 3


def test_missing(tmp_path):
    with pytest.raises(UserError, match=r"data.dataset.path: no file .*absent.tar.gz"):
        CIFAR10Dataset("train", str(tmp_path / "absent.tar.gz"))


def test_truncated(archive):
    path, md5 = archive
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=rf"has the MD5 checksum .*, expected {md5}"):
        CIFAR10Dataset("train", str(path), md5=md5)
    # Also if somebody computes the checksum from the broken file.
    broken = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(UserError, match=r"cannot read .*cifar-10-binary.tar.gz"):
        CIFAR10Dataset("train", str(path), md5=broken)


def test_wrong_checksum(archive):
    path, _ = archive
    with pytest.raises(UserError, match=r"has the MD5 checksum .*, expected c32a1d4ab5d03f1284b"):
        CIFAR10Dataset("train", str(path))


def test_another_archive(tmp_path):
    path = tmp_path / "other.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("readme.txt"), io.BytesIO())
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(UserError, match=r"cannot read .*data_batch_1.bin"):
        CIFAR10Dataset("train", str(path), md5=md5)


def test_half_an_image(tmp_path):
    path = tmp_path / "half.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in FILES["train"]:
            member = tarfile.TarInfo(name)
            member.size = 100
            tar.addfile(member, io.BytesIO(bytes(100)))
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(UserError, match="does not hold whole images"):
        CIFAR10Dataset("train", str(path), md5=md5)


@pytest.fixture
def server(archive):
    """A web server on a free local port that serves the miniature archive."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(archive[0].parent))

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_download(archive, server, tmp_path):
    path, md5 = archive
    target = tmp_path / "downloaded.tar.gz"
    url = f"{server}/{path.name}"
    dataset = CIFAR10Dataset("train", str(target), download=True, md5=md5, url=url)
    assert len(dataset) == 20
    assert target.read_bytes() == path.read_bytes()


def test_download_of_something_else_leaves_nothing(archive, server, tmp_path):
    target = tmp_path / "folder" / "downloaded.tar.gz"
    target.parent.mkdir()
    url = f"{server}/{archive[0].name}"
    with pytest.raises(UserError, match="MD5 checksum"):
        CIFAR10Dataset("train", str(target), download=True, md5="0" * 32, url=url)
    with pytest.raises(UserError, match=r"data.dataset.url: cannot download .*404"):
        CIFAR10Dataset("train", str(target), download=True, url=f"{server}/nothing")
    assert not list(target.parent.iterdir())


def test_no_server(tmp_path):
    """Port 1 of this machine: nothing listens there."""
    target = tmp_path / "downloaded.tar.gz"
    with pytest.raises(UserError, match=r"data.dataset.url: cannot download"):
        CIFAR10Dataset("train", str(target), download=True, url="http://127.0.0.1:1/x.tar.gz")
    assert not list(tmp_path.iterdir())
