"""CIFAR-10 as fields of one time step: red, green and blue are the variables."""

import functools
import hashlib
import shutil
import tarfile
import urllib.request
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from src.data.pytorch_dataset import FieldDataset, Split
from src.errors import UserError

# Plain bytes. The better known Python version is a pickle, and unpickling a file from the internet
# runs whatever code its author put there.
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
COUNTS = {"train": 10_000, "val": 512}  # of 50 000 and 10 000: enough for a check
FILES = {
    "train": [f"data_batch_{number}" for number in range(1, 6)],
    "val": ["test_batch"],
}


class CIFAR10Dataset(FieldDataset):
    """Images of https://www.cs.toronto.edu/~kriz/cifar.html: 10 000 to train, 512 to validate.

    Args:
        split: "val" reads the archive's test images.
        path: the archive cifar-10-binary.tar.gz on this machine.
        download: fetch the archive to ``path`` if it is missing.
    """

    variables, units = ("red", "green", "blue"), ("1", "1", "1")
    # Of all training pixels, from 0 to 1: the numbers that everybody uses.
    mean = np.array([0.4914, 0.4822, 0.4465], np.float32)
    std = np.array([0.2470, 0.2435, 0.2616], np.float32)

    def __init__(
        self, split: Split, path: str = "cifar-10-binary.tar.gz", download: bool = False
    ) -> None:
        archive = Path(path)
        if download and not archive.exists():
            download_file(URL, archive)
        self.images = read_archive(archive)[split][: COUNTS[split]]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = self.images[index].astype(np.float32) / 255
        x = (pixels - self.mean[:, None, None]) / self.std[:, None, None]
        return torch.from_numpy(x[:, None]), index  # an axis for one time step


# Cached, because the second split need not check and unpack 170 MB again.
@functools.cache
def read_archive(archive: Path) -> dict[str, np.ndarray]:
    """The images of each split, uint8 (number, 3, 32, 32). Raises UserError for another file."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "md5").hexdigest()
    if digest != MD5:
        raise UserError(
            f"{archive} is damaged or another file: MD5 {digest}, not {MD5}"
        )
    images = {}
    with tarfile.open(archive) as tar:
        for split, names in FILES.items():
            files = [
                tar.extractfile(f"cifar-10-batches-bin/{name}.bin") for name in names
            ]
            # A record is a label and then three colour planes of 32 by 32 bytes.
            records = np.frombuffer(
                b"".join(file.read() for file in files if file), np.uint8
            )
            images[split] = records.reshape(-1, 3073)[:, 1:].reshape(-1, 3, 32, 32)
    return images


def download_file(url: str, target: Path) -> None:
    """Download to a temporary name, so that half a file never has the right one."""
    partial = target.with_name(f"{target.name}.part")
    with (
        urllib.request.urlopen(url, timeout=30) as response,
        partial.open("wb") as file,
    ):
        size = int(response.headers["Content-Length"] or 0)
        with tqdm.wrapattr(file, "write", total=size, desc=target.name) as bar:
            shutil.copyfileobj(response, bar)
    partial.replace(target)
