"""Numbers of all ranks, and the samples of one."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from src.data.loaders import Loaders
from src.run.errors import UserError
from src.run.reproducibility import ResumableLoader


def sum_over_ranks(numbers: Tensor) -> Tensor:
    """The sum over all ranks. All of them have to call this, or the others wait for ever."""
    return all_reduce(numbers, dist.ReduceOp.SUM)


def max_over_ranks(number: int) -> int:
    """The largest number of all ranks. All of them have to call this."""
    return int(all_reduce(torch.tensor(number), dist.ReduceOp.MAX))


def all_reduce(numbers: Tensor, operation: Any) -> Tensor:
    """``numbers`` of all ranks in one; with a single process, its own."""
    if not dist.is_initialized():
        return numbers.detach()
    # NCCL adds on GPUs, gloo on CPUs. A copy, because dist.all_reduce writes into its argument.
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    result = numbers.detach().to(device, copy=True)
    dist.all_reduce(result, operation)
    return result.to(numbers.device)


def machines_of_ranks() -> list[str]:
    """Where each rank runs: the error of a lost connection names an address, and no rank.

    All ranks have to call this.
    """
    own_machine = socket.gethostname()
    # Sends nothing: it asks the system from which of its addresses it would reach rank 0.
    with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as route:
        route.connect((os.environ["MASTER_ADDR"], 1))
        own_machine += f", {route.getsockname()[0]}"
    machines = [""] * dist.get_world_size()
    dist.all_gather_object(machines, own_machine)
    return machines


def check_world_size(trainer: Any) -> None:
    """Refuse a training of fewer processes than the settings ask for: Lightning would begin it.

    After torchrun without ``--trainer.devices`` each process would train alone; in a SLURM job of
    one task, one device would.

    Raises:
        UserError: the numbers differ.
    """
    wanted = trainer.num_nodes * trainer.num_devices
    started = int(os.environ.get("WORLD_SIZE", trainer.world_size))
    if not wanted == started == trainer.world_size:
        raise UserError(
            f"{started} processes were started, and {trainer.world_size} train together, but"
            f" trainer.num_nodes times trainer.devices is {wanted}"
        )


def check_samples(loader: Any, world_size: int) -> None:
    """Refuse a loader that is not shared out: all ranks would get the same samples.

    Raises:
        UserError: it is such a loader. Of an IterableDataset nothing is known.
    """
    if world_size == 1 or not isinstance(loader, DataLoader):
        return
    inner = getattr(loader.batch_sampler, "sampler", None)
    samplers = (loader.sampler, loader.batch_sampler, inner)
    # Compare the number: a ResumableBatches without a rank has world_size 1.
    shares = [getattr(sampler, "world_size", 0) for sampler in samplers]
    # PyTorch's DistributedSampler calls the ranks replicas.
    shares += [getattr(sampler, "num_replicas", 0) for sampler in samplers]
    if world_size not in shares and not isinstance(loader.dataset, IterableDataset):
        raise UserError(
            "all ranks would train on the same samples: see chapter 1, Your own model"
        )


class RankLoaders(Loaders):
    """Chapter 0's loaders with the samples of one rank; batch_size counts those of all ranks.

    Args:
        rank: number of this process.
        world_size: how many processes train together.
        settings: those of Loaders.

    Raises:
        UserError: the ranks cannot share a batch equally, or one would have nothing to validate.
    """

    def __init__(self, rank: int, world_size: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.rank = rank
        self.world_size = world_size
        if self.batch_size % world_size:
            raise UserError(
                f"data.batch_size: {self.batch_size} is no multiple of {world_size}"
            )
        if len(self.val_set) < world_size:
            raise UserError(
                f"{len(self.val_set)} validation samples for {world_size} processes"
            )

    def train_loader(self, step: Callable[[], int]) -> DataLoader:
        """This rank's samples of each batch in the rest of the epoch that ``step()`` lies in."""
        batches = self.train_batches(step, self.rank, self.world_size)
        return ResumableLoader(self.train_set, batch_sampler=batches, **self.options())

    def val_loader(self) -> DataLoader:
        """Each validation sample on one rank, none twice."""
        # The first ranks may have one batch more. No rank waits for another in a validation step,
        # except in the first one, where DDP sends rank 0's buffers; and each rank has a first one.
        samples = range(self.rank, len(self.val_set), self.world_size)
        size = 2 * self.batch_size // self.world_size
        return DataLoader(
            self.val_set, batch_size=size, sampler=samples, **self.options()
        )

    def options(self) -> dict[str, Any]:
        """The workers of each rank draw other numbers."""
        generator = torch.Generator().manual_seed(self.seed + 1000 * self.rank)
        return super().options() | {"generator": generator}
