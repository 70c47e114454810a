"""Data that stop to arrive, and then a SIGTERM; and data that a worker cannot read."""

import multiprocessing
import os
import signal
import threading

from src.data.pytorch_dataset import DummyDataset


# Each of two workers reads 16 training samples in an epoch; in the second one they wait for ever.
class StalledDataset(DummyDataset):
    def __init__(self, split, **settings) -> None:
        super().__init__(split, **settings)
        self.left = 20 if split == "train" else 1000

    def __getitem__(self, index):
        self.left -= 1
        if self.left < 0:
            os.kill(multiprocessing.parent_process().pid, signal.SIGTERM)
            threading.Event().wait()
        return super().__getitem__(index)


class FailingDataset(DummyDataset):
    def __getitem__(self, index):
        raise OSError("no space left on device")
