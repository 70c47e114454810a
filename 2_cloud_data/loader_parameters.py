"""Try the parameters of a DataLoader, one at a time, on streamed windows.

  uv run python loader_parameters.py
  uv run python loader_parameters.py --step 0.2      a model that takes longer

Each row changes one parameter of the row "2 workers". Its loader serves two epochs to a "model"
that only sleeps, so that the cores belong to the loading. The columns: how long the first batch of
each epoch took, how long the model waited for a batch after that (mean), and the samples that came
out per second. Rows come one after the other; chapter 3 measures with repetitions.
"""

import sys
import time
import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from jsonargparse import auto_cli
from src.config import HelpFormatter
from src.data.cloud_build import OCEAN
from src.data.loaders import make_loaders
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError, one_line_errors
from src.reproducibility import worker_init_fn
from torch.utils.data import DataLoader, Dataset, get_worker_info
from tqdm import tqdm

EPOCHS = 2
SETTINGS: dict[str, dict[str, Any]] = {  # fork is missing: fork_hang.py tries it
    "no workers": {"num_workers": 0},
    "1 worker": {"num_workers": 1},
    "2 workers": {},
    "4 workers": {"num_workers": 4},
    "prefetch_factor 1": {"prefetch_factor": 1},
    "prefetch_factor 8": {"prefetch_factor": 8},
    "not persistent": {"persistent_workers": False},
    "spawn": {"multiprocessing_context": "spawn"},
    "pin_memory": {"pin_memory": True},
}


class Draws(Dataset[tuple[int, int]]):
    """Has a random generator of its own, as datasets with augmentation do."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        return (info.id if info else -1), int(self.rng.integers(1000))


def try_settings(url: str, batches: int, step: float, settings: dict[str, Any]) -> list[float]:
    """Serve two epochs. Returns seconds to each first batch, mean wait after it, samples/s."""
    firsts, waits, began = [], [], 0.0
    dataset = partial(CloudDataset, url=url, dask="threads")
    with make_loaders(dataset, **({"num_workers": 2} | settings)) as loaders:
        if batches >= loaders.steps_per_epoch:
            raise UserError(f"batches: {batches}; allowed: below {loaders.steps_per_epoch}")
        for _ in range(EPOCHS):
            asked = time.perf_counter()
            batch_iterator = iter(loaders.train)
            next(batch_iterator)
            firsts.append(time.perf_counter() - asked)
            began -= time.perf_counter()
            for _ in range(batches):
                time.sleep(step)
                asked = time.perf_counter()
                next(batch_iterator)
                waits.append(time.perf_counter() - asked)
            began += time.perf_counter()
            # A loader that is not persistent ends its workers here.
            del batch_iterator
    samples = EPOCHS * batches * int(loaders.train.batch_size or 0)
    return [*firsts, float(np.mean(waits)), samples / began]


def show_draws(init: Any) -> str:
    """What two workers draw from a generator that the dataset has brought along."""
    loader = DataLoader(
        Draws(),
        num_workers=2,
        worker_init_fn=init,
        multiprocessing_context="forkserver",
        generator=torch.Generator().manual_seed(0),
    )
    return ", ".join(f"worker {int(worker)} draws {int(number)}" for worker, number in loader)


def measure(url: str = OCEAN, batches: int = 32, step: float = 0.02) -> None:
    """Serve batches of 16 windows with different settings.

    Args:
        url: the store.
        batches: batches of an epoch, besides the first.
        step: seconds that the model takes for a batch.
    """
    if batches < 1 or step < 0:
        raise UserError(f"batches: {batches}, step: {step}; allowed: from 1, from 0")
    # Two of the settings are here because they make no sense on this machine.
    warnings.filterwarnings("ignore", message=".*(worker processes in total|no accelerator)")
    found = {}
    for name, settings in tqdm(SETTINGS.items(), unit="setting", disable=None):
        found[name] = try_settings(url, batches, step, settings)
    print(f"{'':18}{'first batch s':>14}{'epoch 2 s':>11}{'wait ms':>9}{'samples/s':>11}")
    for name, (first, second, wait, speed) in found.items():
        print(f"{name:<18}{first:>14.2f}{second:>11.2f}{1e3 * wait:>9.1f}{speed:>11.0f}")
    print(f"without worker_init_fn: {show_draws(None)}")
    print(f"with worker_init_fn:    {show_draws(worker_init_fn)}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(measure, description=__doc__, formatter_class=HelpFormatter)
        sys.exit()
