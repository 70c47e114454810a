"""The batches of chapter 0, split among the ranks: together they train on what one would."""

from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from src.data.loaders import Loaders
from src.run.distributed import RankLoaders


class FieldDataModule(L.LightningDataModule):
    """Training and validation samples of a FieldDataset.

    Args:
        seed: seed of the order of the samples.
        settings: those of Loaders.
    """

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        super().__init__()
        self.seed = seed
        # On a line of its own: jsonargparse follows it to Loaders.
        self.settings = settings

    def prepare_data(self) -> None:
        """Download what is missing, on one process of each machine.

        A dataset downloads where it is opened: this opens the data, and drops them. Sets nothing,
        because the other processes would not see it.
        """
        Loaders(**self.settings)

    def setup(self, stage: str) -> None:
        """Open the data, on every rank."""
        rank = self.trainer.global_rank
        self.loaders = RankLoaders(
            rank, self.trainer.world_size, seed=self.seed, **self.settings
        )
        self.train_set = self.loaders.train_set
        self.val_set = self.loaders.val_set
        # Both are the same for any number of devices.
        self.batch_size = self.loaders.batch_size
        self.steps_per_epoch = self.loaders.steps_per_epoch

    def train_dataloader(self) -> DataLoader:
        """This rank's training samples; Lightning asks for them once."""
        return self.loaders.train_loader(lambda: self.trainer.global_step)

    def val_dataloader(self) -> DataLoader:
        """This rank's validation samples."""
        return self.loaders.val_loader()

    test_dataloader = predict_dataloader = val_dataloader
