"""A dataset that takes as long as you say: the smallest thing that can be benchmarked.

Replace it by yours: ``--dataset my_package.my_module.MyDataset``. All that the benchmark asks of a
dataset is what a DataLoader asks: ``__len__`` and ``__getitem__``.
"""

import time

import torch
from torch import Tensor
from torch.utils.data import Dataset


class DummySlowDataset(Dataset[tuple[Tensor, int]]):
    """A constant field, after a pause.

    Args:
        split: train or val; it makes no difference here.
        num_samples: its length.
        load_time: seconds that a sample takes.
        sample_shape: variables, months, latitudes, longitudes.
    """

    def __init__(
        self,
        split: str = "train",
        num_samples: int = 4096,
        load_time: float = 0.01,
        sample_shape: tuple[int, ...] = (4, 1, 64, 64),
    ) -> None:
        self.num_samples, self.load_time = num_samples, load_time
        self.sample_shape = sample_shape

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.load_time)
        return torch.full(self.sample_shape, float(index)), index
