"""Does every key of the configuration reach the object that it is meant for?"""

# A key that is read and then forgotten is an expensive bug: the run works, and is not the one that
# you asked for. Run with `python -m unittest tests/test_parameters.py` or with pytest.

import unittest

import torch
import yaml
from pytorch_train import CLASSES

from src.data.loaders import Loaders
from src.model.pytorch_model import MaskedAutoencoder
from src.run.config import CHAPTER, parse_config
from src.run.optim import make_optimizer

CHANGES = yaml.safe_load((CHAPTER / "tests" / "changes.yaml").read_text())


def outcome(*arguments: str) -> int:
    """A hash of what is built from a configuration: samples, a loss, learning rates."""
    config, _ = parse_config("", CLASSES, list(arguments))
    loaders = Loaders(**vars(config.data), seed=config.seed_everything)
    samples = [vars(loaders.train_set.grid), vars(loaders.val_set.grid)]
    batches = list(loaders.train_loader(lambda: 0).batch_sampler)
    torch.manual_seed(0)
    model = MaskedAutoencoder(
        (1, 12, 16, 32), **vars(config.model), seed=config.seed_everything
    )
    loss = model(torch.ones(1, 1, 12, 16, 32), torch.tensor([0]), 0).squared_error
    optimizer, scheduler = make_optimizer(model, 10, **vars(config.optimizer))
    rates = [scheduler.lr_lambdas[0](step) for step in range(10)]
    return hash(str([samples, batches, loaders.num_workers, loss, rates, optimizer]))


class TestParameters(unittest.TestCase):
    def test_every_key_changes_what_is_built(self):
        window = "--data.dataset.window=[6,8,8]"  # with it, the periods can be changed one by one
        before = outcome(window)
        for key, value in CHANGES.items():
            self.assertNotEqual(before, outcome(window, f"--{key}={value}"), key)

    def test_the_file_has_every_argument_with_its_default(self):
        written = yaml.safe_load((CHAPTER / "config" / "config.yaml").read_text())
        _, defaults = parse_config("", CLASSES, ["-c={data: {dataset: OceanDataset}}"])
        self.assertEqual(written | {"resume": None}, yaml.safe_load(defaults))
