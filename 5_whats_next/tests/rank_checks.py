"""Started by torchrun on each rank: what two ranks do when all is well.

Starting two processes takes many seconds, so the checks of test_ranks.py share one start. The
arguments are a folder for the results, the address of archives, and their MD5 checksum. Each rank
writes what it saw to rank_R.json; the tests compare.
"""

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import lightning as L
import lightning_train
import numpy as np
import pytorch_ddp_train
import torch
import torch.distributed as dist
import wandb
from src.config import parse_config
from src.data.cifar10 import CIFAR10Dataset
from src.data.lightning_datamodule import FieldDataModule
from src.data.lightning_sampler import EvaluationSlice
from src.data.pytorch_dataset import DummyDataset, FieldDataset
from src.lightning_logger import RunLogger
from src.lightning_predictions import WritePredictions
from src.lightning_ranks import sum_over_ranks
from src.lightning_settings import quiet
from src.model.lightning_module import AutoencoderModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tests.runs import TINY

SCRIPTS = {"lightning": lightning_train, "by hand": pytorch_ddp_train}
DEVICES = {"lightning": ["--trainer.devices=2", "--trainer.strategy=ddp"], "by hand": []}
SHAPE = (2, 4, 8, 8)
MODEL = {"patch_size": (2, 4, 4), "embed_dim": 16, "decoder_embed_dim": 16}
SIZES = (1, 2, 5, 17)  # of validation sets; the first is smaller than the number of ranks


class Draws(FieldDataset):
    """A sample is what its worker draws: the seed of its generators, and a number of ``rng``."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        return torch.initial_seed(), int(self.rng.integers(2**40))


def new_trainer(**settings) -> L.Trainer:
    """A Trainer of two ranks that writes nothing, unless it is told to."""
    settings = {"logger": False, "enable_checkpointing": False, **settings}
    return L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def val_set(size: int) -> DummyDataset:
    return DummyDataset("val", SHAPE, num_val_samples=size)


def data_of(size: int) -> FieldDataModule:
    dataset = partial(DummyDataset, sample_shape=SHAPE, num_samples=8, num_val_samples=size)
    return FieldDataModule(dataset, batch_size=4)


def sums(rank: int) -> list:
    """Summands before and after, and sums: each needs all its 64 bits."""
    small, large = torch.tensor([1.0, 2**-40], dtype=torch.float64), torch.tensor(2**60 + 1)
    given = [small * (rank + 1), large * (rank + 1)]
    before = [number.tolist() for number in given]
    totals = sum_over_ranks(*given)
    return [before, [n.tolist() for n in given], [n.tolist() for n in totals]]


def draws() -> list[list[int]]:
    """For each of two workers: its seed, and the first number of its dataset's ``rng``."""
    data = FieldDataModule(lambda split: Draws(), batch_size=4, num_workers=2)
    data.trainer = new_trainer()
    data.prepare_data()
    data.setup("fit")
    return [[int(seed[0]), int(number[0])] for seed, number in data.train_dataloader()]


def download(folder: Path, url: str, md5: str) -> dict[str, str]:
    """Checksum of the images after a download that the Trainer begins, and one by hand."""
    target = folder / "download"
    images = {}
    settings = {"download": True, "md5": md5}
    dataset = partial(
        CIFAR10Dataset, path=str(target / "lightning"), url=f"{url}/whole/lightning", **settings
    )
    data = FieldDataModule(dataset, batch_size=4)
    module = AutoencoderModule(**{**MODEL, "patch_size": (1, 8, 8)})
    new_trainer(max_steps=1, max_epochs=1).fit(module, data)
    images["lightning"] = data.train_set.images
    options = {"path": target / "by hand", "url": f"{url}/whole/by-hand", **settings}
    arguments = [f"--data.dataset.{key}={value}" for key, value in options.items()]
    config, _ = parse_config("", ["--data.dataset=CIFAR10Dataset", *arguments])
    dist.barrier()
    images["by hand"] = pytorch_ddp_train.build_data(config).train_set.images
    return {name: hashlib.md5(array).hexdigest() for name, array in images.items()}


def scores(size: int) -> dict[str, dict[str, float]]:
    """Scores of new weights on ``size`` samples: validation, test with baselines, by hand."""
    L.seed_everything(0, verbose=False)
    data, module, trainer = data_of(size), AutoencoderModule(**MODEL), new_trainer()
    validated = trainer.validate(module, data, verbose=False)[0]
    trainer.test(module, data, verbose=False)
    own = EvaluationSlice(size, dist.get_rank(), 2)
    loader = DataLoader(data.val_set, 3, sampler=own)
    loaders = SimpleNamespace(val_set=data.val_set)
    by_hand = pytorch_ddp_train.validate(module.model, loader, loaders, torch.device("cpu"))
    return {"lightning": validated, "by hand": by_hand, **module.scores}


def predict(folder: Path, size: int) -> None:
    """Write predictions for ``size`` samples."""
    logger = RunLogger(str(folder / f"predict {size}"), wandb="disabled")
    trainer = new_trainer(logger=logger, callbacks=[WritePredictions()])
    trainer.predict(AutoencoderModule(**MODEL), data_of(size), return_predictions=False)


def weight_sum(model: torch.nn.Module) -> float:
    return sum(float(weight.double().abs().sum()) for weight in model.parameters())


def train(script: str, folder: Path) -> dict:
    """A training: what it printed, the weights it began with, how often it opened wandb."""
    begun, wrap = [], DistributedDataParallel.__init__

    def noting(self: DistributedDataParallel, module: torch.nn.Module, *args, **kw) -> None:
        begun.append(weight_sum(module))  # before DDP hands out those of rank 0
        wrap(self, module, *args, **kw)

    output = ["--trainer.wandb=offline", f"--trainer.output_dir={folder / script}"]
    with (
        mock.patch.object(sys, "argv", [script, *TINY, *DEVICES[script], *output]),
        mock.patch.object(DistributedDataParallel, "__init__", noting),
        mock.patch.object(wandb, "init", wraps=wandb.init) as opened,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        assert SCRIPTS[script].main() == 0
    return {"printed": printed.getvalue(), "weights": begun, "wandb": opened.call_count}


def on_each_rank(work: Callable[[int], dict], folder: Path) -> None:
    """Write what ``work(rank)`` returns to rank_R.json.

    One process group for all: it cannot be made twice with the keys of the same launch.
    """
    quiet()
    # A rank that waits in vain fails after a minute.
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    destroy = dist.destroy_process_group
    dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None
    rank = dist.get_rank()
    (folder / f"rank_{rank}.json").write_text(json.dumps(work(rank)))
    destroy()


def main(arguments: Sequence[str]) -> None:
    folder, url, md5 = Path(arguments[0]), arguments[1], arguments[2]

    def work(rank: int) -> dict:
        found = {"sums": sums(rank), "draws": draws()}
        found["download"] = download(folder, url, md5)
        found["scores"] = {size: scores(size) for size in SIZES}
        found["training"] = {script: train(script, folder) for script in SCRIPTS}
        for size in reversed(SIZES):
            predict(folder, size)
        return found

    on_each_rank(work, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
