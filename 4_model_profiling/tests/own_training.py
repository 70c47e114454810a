"""A module and data that are not this project's: a line through points."""

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Line(L.LightningModule):
    """Fits a line by gradient descent.

    Args:
        lr: learning rate.
        width: of a hidden layer.
    """

    def __init__(self, lr: float = 0.1, width: int = 8) -> None:
        super().__init__()
        self.lr = lr
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.Linear(width, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return (self.layers(x) - y).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.lr)


class Points(L.LightningDataModule):
    """Points on a line.

    Args:
        number: of points.
        batch_size: points in a batch.
    """

    def __init__(self, number: int = 32, batch_size: int = 4) -> None:
        super().__init__()
        self.number, self.batch_size = number, batch_size

    def train_dataloader(self) -> DataLoader:
        x = torch.linspace(0, 1, self.number)[:, None]
        return DataLoader(
            TensorDataset(x, 2 * x + 1), batch_size=self.batch_size, drop_last=True, shuffle=True
        )


class NoModule:
    """Neither a module nor data."""
