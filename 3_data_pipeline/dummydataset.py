"""A dataset that only waits: it shows what a loader's settings do, without any storage."""

import time

import torch
from torch import Tensor
from torch.utils.data import Dataset


class SlowDataset(Dataset):
    """Each sample takes ``load_time`` seconds, as one that comes over a network."""

    def __init__(self, split: str, load_time: float = 0.01) -> None:
        self.load_time = load_time

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.load_time)
        return torch.full((1, 12, 16, 32), float(index)), index
