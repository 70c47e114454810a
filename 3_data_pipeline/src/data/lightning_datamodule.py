"""The batches of chapter 0, split among the ranks: together they train on what one would."""

from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from src.data.build import build_ocean
from src.data.fields import NoStoreError
from src.data.loaders import Loaders
from src.data.store import OCEAN


class FieldDataModule(L.LightningDataModule):
    """Training and validation samples of a FieldDataset.

    Args:
        seed: seed of the order of the samples.
        settings: those of Loaders.
    """

    # Our loaders share the samples out. For a data module without this line Lightning does it.
    use_distributed_sampler = False

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        super().__init__()
        self.seed = seed
        # On a line of its own: jsonargparse follows it to Loaders.
        self.settings = settings

    def prepare_data(self) -> None:
        """Build the store of the default run if it is missing, on one rank of each machine.

        Sets nothing: the other ranks, which wait, would not see it.
        """
        try:
            # All named: what is not, jsonargparse would take for a setting.
            Loaders(seed=self.seed, rank=0, world_size=1, **self.settings)
        except NoStoreError as error:
            if not str(error).startswith(f"{OCEAN}:"):
                raise
            build_ocean()

    def setup(self, stage: str) -> None:
        """Open the data, on every rank."""
        trainer: Any = self.trainer
        self.loaders = Loaders(
            seed=self.seed,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            **self.settings,
        )
        self.batch_size = self.loaders.batch_size  # of all ranks together

    def train_dataloader(self) -> DataLoader:
        """This rank's training samples; Lightning asks for them once."""
        trainer: Any = self.trainer
        return self.loaders.train_loader(lambda: trainer.global_step)

    def val_dataloader(self) -> DataLoader:
        """This rank's validation samples."""
        return self.loaders.val_loader()

    test_dataloader = predict_dataloader = val_dataloader
