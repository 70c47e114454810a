"""The batches of chapter 0, split among the ranks: together they train on what one would."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from src.data.loaders import Loaders, TrainBatches
from src.errors import UserError


@dataclass(eq=False)
class RankBatches(TrainBatches):
    """This rank's part of each batch: samples rank, rank + world_size, ... of it."""

    # DistributedSampler does this too, but cannot begin inside an epoch, after a resume.
    rank: int
    world_size: int

    # Its length is that of TrainBatches: the steps of the whole batch, the same on all ranks.
    def __iter__(self) -> Iterator[list[int]]:
        for batch in super().__iter__():
            yield batch[self.rank :: self.world_size]


class ResumableLoader(DataLoader):
    """A loader without a state of its own, because RankBatches asks the Trainer for the step."""

    # Lightning looks for these two, and warns on a resume if they are missing. It counts the
    # batches that this epoch has had before the resume itself, and adds those that come.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class RankLoaders(Loaders):
    """Chapter 0's loaders with the samples of one rank; batch_size counts those of all ranks."""

    def __init__(self, rank: int, world_size: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.rank, self.world_size = rank, world_size
        if self.batch_size % world_size:
            raise UserError(
                f"data.batch_size: {self.batch_size} is no multiple of {world_size}"
            )

    def train_loader(self, step: Callable[[], int]) -> DataLoader:
        order = len(self.train_set), self.batch_size, self.seed, step
        batches = RankBatches(*order, self.rank, self.world_size)
        return ResumableLoader(
            self.train_set, batch_sampler=batches, **self.options(self.rank)
        )

    def val_loader(self) -> DataLoader:
        """Each validation sample on one rank, none twice."""
        # validation_step waits for no other rank, so the first ranks may have one batch more. Each
        # needs one at least. Not Subset, which would hide the dataset's rng from worker_init_fn.
        samples = range(self.rank, len(self.val_set), self.world_size)
        size = 2 * self.batch_size // self.world_size
        return DataLoader(
            self.val_set, batch_size=size, sampler=samples, **self.options(self.rank)
        )


class FieldDataModule(L.LightningDataModule):
    """Training and validation samples of a FieldDataset."""

    # The seed is that of the samples' order; the other settings are those of Loaders.
    def __init__(self, seed: int = 0, **settings: Any) -> None:
        super().__init__()
        self.seed = seed
        self.settings = (
            settings  # on a line of its own: jsonargparse follows it to Loaders
        )

    # Downloads, on one process of each machine. Set nothing here: the others would not see it.
    def prepare_data(self) -> None:
        Loaders(**self.settings)

    # Builds the datasets, on every rank.
    def setup(self, stage: str) -> None:
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        self.loaders = loaders = RankLoaders(
            rank, world_size, seed=self.seed, **self.settings
        )
        self.train_set, self.val_set = loaders.train_set, loaders.val_set
        # Both are the same for any number of devices.
        self.batch_size, self.steps_per_epoch = (
            loaders.batch_size,
            loaders.steps_per_epoch,
        )

    def train_dataloader(self) -> DataLoader:
        return self.loaders.train_loader(lambda: self.trainer.global_step)

    def val_dataloader(self) -> DataLoader:
        return self.loaders.val_loader()

    test_dataloader = predict_dataloader = val_dataloader
