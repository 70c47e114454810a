"""Data that stop to arrive."""

import threading
from pathlib import Path

from src.data.pytorch_dataset import DummyDataset


class StalledDataset(DummyDataset):
    """After ``most`` training samples none comes from this process; a file says so."""

    def __init__(self, split, sign: str, most: int, **settings) -> None:
        super().__init__(split, **settings)
        self.left, self.sign = most if split == "train" else 1000, Path(sign)

    def __getitem__(self, index):
        self.left -= 1
        if self.left < 0:
            self.sign.touch()
            threading.Event().wait()
        return super().__getitem__(index)
