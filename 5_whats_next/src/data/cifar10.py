"""CIFAR-10 as fields of one time step: red, green and blue are the variables.

The binary version of the archive is plain bytes. The Python version is a pickle, and unpickling a
file from the internet runs whatever code its author put there.
"""

import hashlib
import os
import tarfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from src.data.pytorch_dataset import FieldDataset, Split
from src.data.statistics import check_counts, normalise, valid_statistics
from src.errors import UserError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
RECORD = 1 + 3 * 32 * 32  # a label, then the three colour planes
FILES = {
    "train": [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)],
    "val": ["cifar-10-batches-bin/test_batch.bin"],
}


class CIFAR10Dataset(FieldDataset):
    """The 50 000 training and 10 000 test images of https://www.cs.toronto.edu/~kriz/cifar.html.

    Args:
        split: "val" reads the archive's test images.
        path: the archive cifar-10-binary.tar.gz on this machine.
        download: fetch the archive to ``path`` if it is not there.
        num_samples: train on the first so many images; 0 means all.
        num_val_samples: validate on the first so many images; 0 means all.
        md5: checksum of the archive.
        url: where to download from.
    """

    variables = ("red", "green", "blue")
    units = ("1", "1", "1")

    def __init__(
        self,
        split: Split,
        path: str = "cifar-10-binary.tar.gz",
        download: bool = False,
        num_samples: int = 0,
        num_val_samples: int = 512,
        md5: str = MD5,
        url: str = URL,
    ) -> None:
        check_counts(0, num_samples=num_samples, num_val_samples=num_val_samples)
        archive = Path(path).expanduser()
        if download and not archive.exists():
            download_file(url, archive, md5)
        check_md5(archive, md5)
        train = read_images(archive, "train", num_samples)
        self.mean, self.std = valid_statistics(train.swapaxes(0, 1), self.variables)
        images = train if split == "train" else read_images(archive, split, num_val_samples)
        self.images = images[:, :, None]  # (number, V, T = 1, H, W)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(normalise(self.images[index], self.mean, self.std)), index


def read_images(archive: Path, split: Split, num_samples: int) -> np.ndarray:
    """The first images (0: all) of a split: float32 (number, 3, 32, 32) from 0 to 1."""
    try:
        with tarfile.open(archive) as tar:
            # None stands for what is not a regular file; such an archive is not CIFAR-10.
            members = [tar.extractfile(name) for name in FILES[split]]
            content = b"".join(member.read() for member in members if member)
    except (tarfile.TarError, EOFError, OSError, KeyError) as error:
        raise UserError(f"data.dataset.path: cannot read {archive}: {error}") from error
    if not content or len(content) % RECORD:
        raise UserError(
            f"data.dataset.path: {archive} does not hold whole images; is it the binary version?"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)[: num_samples or None]
    return records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255


def check_md5(archive: Path, md5: str) -> None:
    """Raise unless ``archive`` is there and is the file that ``md5`` was computed from."""
    if not archive.is_file():
        raise UserError(
            f"data.dataset.path: no file {archive}; give the path of cifar-10-binary.tar.gz, "
            "or add --data.dataset.download true"
        )
    if (found := md5_of(archive)) != md5:
        raise UserError(
            f"data.dataset.path: {archive} has the MD5 checksum {found}, expected {md5}: "
            "it is truncated, damaged or another file; delete it and download it again"
        )


def md5_of(path: Path) -> str:
    """The MD5 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def download_file(url: str, target: Path, md5: str) -> None:
    """Download to a temporary name; ``target`` appears only when the checksum is right."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with urllib.request.urlopen(url, timeout=30) as response, partial.open("wb") as file:
            total = int(response.headers.get("Content-Length", 0)) or None
            with tqdm(
                total=total, unit="B", unit_scale=True, desc=f"downloading {target.name}"
            ) as bar:
                while block := response.read(1 << 20):
                    file.write(block)
                    bar.update(len(block))
        if (found := md5_of(partial)) != md5:
            raise UserError(
                f"data.dataset.url: what {url} gave has the MD5 checksum {found}, expected {md5}: "
                "it is truncated, damaged or another file"
            )
        partial.replace(target)
    # HTTPException: the connection was cut; ValueError: the address is none.
    except (OSError, HTTPException, ValueError) as error:
        raise UserError(f"data.dataset.url: cannot download {url}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
