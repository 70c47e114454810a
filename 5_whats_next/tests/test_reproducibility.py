"""Seeds: what PyTorch does by itself in DataLoader workers, what it does not, and what we add."""

import contextlib
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import psutil
import pytest
import torch
from src.config import CHAPTER
from src.data.loaders import make_loaders
from src.data.pytorch_dataset import DummyDataset
from src.data.sampler import EpochSampler, epoch_order
from src.errors import UserError
from src.reproducibility import set_seed, worker_init_fn
from torch.utils.data import DataLoader, Dataset


class RandomNumbers(Dataset):
    """One random number from each generator that a dataset might use."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        own = self.rng.random()
        return torch.tensor([random.random(), torch.rand(()).item(), np.random.rand(), own])


def draw(seed: int, init: Callable | None = worker_init_fn) -> torch.Tensor:
    """(8, 4) numbers from two workers; each loads every second batch of one."""
    set_seed(0)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(RandomNumbers(), 1, num_workers=2, generator=generator, worker_init_fn=init)
    return torch.cat(list(loader))


def test_pytorch_seeds_its_workers():
    """Without any worker_init_fn: random, torch and numpy.random repeat, and differ by worker."""
    first, again = draw(0, init=None), draw(0, init=None)
    assert first[:, :3].equal(again[:, :3])
    assert (first[0::2, :3] != first[1::2, :3]).all()


def test_pytorch_does_not_know_the_datasets_own_generator():
    """Both workers got the same copy, and draw the same numbers: half of the randomness is gone."""
    numbers = draw(0, init=None)
    assert numbers[0::2, 3].equal(numbers[1::2, 3])


def test_worker_init_fn_seeds_the_datasets_own_generator():
    first, again, other = draw(0), draw(0), draw(1)
    assert first.equal(again)
    assert (first[0::2, 3] != first[1::2, 3]).all()
    assert (first != other).all()


def test_set_seed():
    def numbers() -> list[float]:
        return [random.random(), np.random.rand(), torch.rand(()).item()]

    set_seed(3)
    first = numbers()
    set_seed(3)
    assert numbers() == first
    set_seed(4)
    assert all(a != b for a, b in zip(numbers(), first, strict=True))


@pytest.mark.parametrize("deterministic", [True, False])
def test_cudnn_switches(deterministic):
    set_seed(0, deterministic)
    assert torch.backends.cudnn.deterministic == deterministic
    assert torch.backends.cudnn.benchmark != deterministic
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    set_seed(0, True)


def test_order_is_a_permutation_of_seed_and_epoch():
    orders = [tuple(epoch_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(orders)) == 9
    assert tuple(epoch_order(50, 0, 1)) == orders[1]


def test_sampler_starts_anywhere():
    sampler = EpochSampler(20, seed=5)
    sampler.set_epoch(2)
    whole = list(sampler)
    sampler.set_epoch(2, start=8)
    assert list(sampler) == whole[8:]
    assert len(sampler) == 12


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader_order_does_not_depend_on_the_workers(num_workers):
    loaders = make_loaders(
        lambda split: DummyDataset(split, (1, 2, 4, 4), 10, 10), 3, num_workers, seed=1
    )
    expected = epoch_order(10, 1, 0)[:9]  # drop_last: the tenth waits for another epoch
    found = [i for _, index in loaders.train for i in index.tolist()]
    assert found == expected
    loaders.sampler.set_epoch(1, start=3)
    found = [i for _, index in loaders.train for i in index.tolist()]
    assert found == epoch_order(10, 1, 1)[3:9]
    assert [i for _, index in loaders.val for i in index.tolist()] == list(range(10))


def test_batch_larger_than_the_dataset():
    """With drop_last this would be an epoch of no step, which trains nothing without a word."""
    with pytest.raises(UserError, match=r"data.batch_size: 11 .*allowed: 1 to 10"):
        make_loaders(lambda split: DummyDataset(split, (1, 2, 4, 4), 10), batch_size=11)


WITH_WORKER = """
import os, sys
sys.path.insert(0, {chapter!r})
from torch.utils.data import DataLoader
from src.reproducibility import worker_init_fn

if __name__ == "__main__":
    settings = {{"num_workers": 1, "multiprocessing_context": sys.argv[1]}}
    numbers = iter(DataLoader(range(1000), 1, worker_init_fn=worker_init_fn, **settings))
    next(numbers)
    print(numbers._workers[0].pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_end_when_the_training_is_killed(tmp_path, method):
    """It has no time to end them then, and nobody else would."""
    script = tmp_path / "with_worker.py"
    script.write_text(WITH_WORKER.format(chapter=str(CHAPTER)))
    command = [sys.executable, str(script), method]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as training:
        worker = psutil.Process(int(training.stdout.readline()))
        training.kill()
    # A worker that nobody waits for may stay as a zombie: it runs no more.
    for _ in range(600):
        with contextlib.suppress(psutil.NoSuchProcess):
            if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
                subprocess.run([sys.executable, "-c", ""], check=True)
                continue
        return
    worker.kill()
    pytest.fail("the worker is still there")
