"""What several processes have to agree on: failures, and sums.

Rank r of ``world_size`` processes; rank 0 speaks for all of them.
"""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from src.errors import UserError


class SharedError(UserError):
    """A UserError that all ranks raise together, so that one of them is enough to report it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # Asked now: where the error is reported, there may be no process group any more.
        self.speaks = not dist.is_initialized() or dist.get_rank() == 0


@contextmanager
def shared_fate() -> Iterator[None]:
    """If the block raises a UserError on one rank, raise it on all of them.

    Without this a failed rank ends, and the others wait for it at the next meeting: until the
    launcher kills them if there is one, and else until the timeout, half an hour later.
    """
    failure = None
    try:
        yield
    except UserError as error:
        failure = error
    failures: list[str | None] = [str(failure) if failure else None]
    if dist.is_initialized():
        failures = failures * dist.get_world_size()
        dist.all_gather_object(failures, str(failure) if failure else None)
    told = [(rank, message) for rank, message in enumerate(failures) if message is not None]
    if told:
        rank, message = told[0]
        where = f" (rank {rank} of {len(failures)})" if len(told) < len(failures) else ""
        raise SharedError(message + where) from failure


def sum_over_ranks(*numbers: Tensor) -> list[Tensor]:
    """The sums over all ranks of tensors, each of any shape; the tensors themselves stay."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return list(numbers)
    # NCCL sums on the GPU, gloo on the CPU.
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    sums = [number.to(device, copy=True) for number in numbers]
    for total in sums:
        dist.all_reduce(total)
    return [total.to(number.device) for total, number in zip(sums, numbers, strict=True)]


def is_rank_zero() -> bool:
    """Whether this process speaks for all; Lightning notes the rank as soon as it knows it."""
    return getattr(rank_zero_only, "rank", 0) == 0


def early_rank() -> int:
    """This process's number on its machine, before there is a process group to ask.

    torchrun and Lightning set LOCAL_RANK, SLURM sets SLURM_LOCALID.
    """
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


def launch_id() -> str:
    """What torchrun calls this launch: the same after a restart; empty if it has no name.

    torchrun makes one up for --standalone; else --rdzv-id gives it, and "none" stands for nothing.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if name == "none" else name


def speaks(error: UserError) -> bool:
    """Whether this process is the one to report ``error``."""
    if isinstance(error, SharedError):
        return error.speaks
    # Before the process group exists, all processes of a machine read the same settings.
    return dist.is_initialized() or early_rank() == 0


def wait_for(ranks: Iterable[subprocess.Popen]) -> None:
    """Wait until processes that this one has started are gone; end those that hang."""
    for process in ranks:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def seed_of_rank(seed: int, rank: int) -> int:
    """A seed for what must differ between ranks; rank 0 has the seed itself.

    PyTorch's generators on the CPU use the lower 32 bits of a seed and no more. The odd factor
    keeps seed 0 of rank 1 away from seed 1 of rank 0.
    """
    return (seed + rank * 0x9E3779B1) % 2**32


def is_finite_everywhere(value: Tensor) -> bool:
    """Whether a number that all ranks share is finite; waits for the device."""
    return bool(torch.isfinite(value))
