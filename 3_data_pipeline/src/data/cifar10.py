"""CIFAR-10 as fields of one time step: red, green and blue are the variables."""

import numpy as np
import torch
from torch import Tensor

from src.data.pytorch_dataset import FieldDataset, Split

COUNTS = {"train": 10_000, "val": 512}  # of 50,000 and 10,000: enough for a check


class CIFAR10Dataset(FieldDataset):
    """Images of https://www.cs.toronto.edu/~kriz/cifar.html: 10,000 to train, 512 to validate.

    Needs torchvision, which is in the dependency group cifar10.

    Args:
        split: "val" reads the archive's test images.
        root: the folder that has, or gets, the archive and its images.
        download: fetch the archive (170 MB) if it is missing.
    """

    variables = ("red", "green", "blue")
    units = ("1", "1", "1")
    # Of all training pixels, from 0 to 1: the numbers that everybody uses.
    mean = np.array([0.4914, 0.4822, 0.4465], np.float32)
    std = np.array([0.2470, 0.2435, 0.2616], np.float32)

    def __init__(
        self, split: Split, root: str = "cifar10", download: bool = False
    ) -> None:
        from torchvision.datasets import CIFAR10  # not in the default installation

        is_train = split == "train"
        images = CIFAR10(root, train=is_train, download=download)
        self.images = images.data[: COUNTS[split]]  # uint8 (number, 32, 32, 3)

    def __len__(self) -> int:
        """The number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image (3, 1, 32, 32), normalised: one time step."""
        pixels = self.images[index].astype(np.float32) / 255
        x = torch.from_numpy((pixels - self.mean) / self.std)
        return x.permute(2, 0, 1)[:, None], index
