"""Does every key of the configuration reach the object that it is meant for?

A key that is read and then forgotten is an expensive bug: the run works, and is not the one that
you asked for. Run with ``python -m unittest tests/test_parameters.py`` or with pytest.
"""

import contextlib
import inspect
import tempfile
import unittest
from pathlib import Path

import yaml
from src.config import CHAPTER, TrainerSettings, parse_config
from src.data.fast_dataset import FastDataset
from src.data.loaders import make_loaders
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError
from src.model.pytorch_model import MaskedAutoencoder
from src.optim import make_optimizer

CONFIG = CHAPTER / "config" / "config.yaml"


def parse(*arguments: str):
    """The configuration that the command line gives."""
    return parse_config("test", arguments)[0]


class TestEveryKeyArrives(unittest.TestCase):
    """One test for each section of config.yaml."""

    def test_file_names_every_argument(self):
        """What can be configured stands in config.yaml, and nothing else does."""
        written = yaml.safe_load(CONFIG.read_text())
        for section, target, derived in (
            ("model", MaskedAutoencoder, {"sample_shape", "seed"}),
            ("data", make_loaders, {"seed"}),
            ("optimizer", make_optimizer, {"model", "total_steps"}),
            ("trainer", TrainerSettings, set()),
        ):
            with self.subTest(section):
                arguments = set(inspect.signature(target).parameters) - derived
                self.assertEqual(set(written[section]), arguments)

    def test_file_repeats_the_defaults(self):
        """Reading the code and reading the file tells the same story, but for what is chosen."""
        chosen = {"max_epochs", "picture_every_n_epochs"}  # a stream is slower than memory
        written = yaml.safe_load(CONFIG.read_text())
        for section, target in (
            ("model", MaskedAutoencoder),
            ("data", make_loaders),
            ("optimizer", make_optimizer),
            ("trainer", TrainerSettings),
        ):
            for key, parameter in inspect.signature(target).parameters.items():
                if key in chosen:
                    self.assertNotEqual(written[section][key], parameter.default)
                elif parameter.default is not inspect.Parameter.empty and key in written[section]:
                    with self.subTest(f"{section}.{key}"):
                        default = parameter.default
                        default = list(default) if isinstance(default, tuple) else default
                        self.assertEqual(written[section][key], default)

    def test_file_repeats_the_defaults_of_the_dataset(self):
        written = yaml.safe_load(CONFIG.read_text())["data"]["dataset"]["init_args"]
        defaults = inspect.signature(FastDataset).parameters
        self.assertLessEqual(set(written), set(defaults) - {"split"})
        for key, value in written.items():
            value = tuple(value) if isinstance(value, list) else value
            self.assertEqual(value, defaults[key].default, key)

    def test_fast_reader_repeats_the_defaults_of_chapter_2s(self):
        ours = inspect.signature(FastDataset).parameters
        theirs = dict(inspect.signature(CloudDataset).parameters)
        for key in ("dask", "dask_threads"):  # it needs none
            del theirs[key]
        for key, parameter in theirs.items():
            self.assertEqual(ours[key], parameter)
        self.assertEqual(list(ours)[: len(theirs)], list(theirs))

    def test_model(self):
        config = parse(
            "--model.patch_size=[6,2,8]",
            "--model.mask_ratio=0.5",
            "--model.embed_dim=48",
            "--model.depth=3",
            "--model.num_heads=6",
            "--model.decoder_embed_dim=24",
            "--model.decoder_depth=1",
            "--model.decoder_num_heads=2",
            "--model.norm_pix_loss=true",
        )
        model = MaskedAutoencoder((2, 12, 16, 32), **vars(config.model), seed=7)
        self.assertEqual(model.grid, [2, 8, 4])
        self.assertEqual((model.mask_ratio, model.norm_pix_loss, model.seed), (0.5, True, 7))
        self.assertEqual(model.encoder.embed.in_features, 2 * 2 * 6 * 2 * 8)
        self.assertEqual(model.encoder.embed.out_features, 48)
        self.assertEqual(len(model.encoder.blocks), 3)
        self.assertEqual(model.encoder.blocks[0].attn.num_heads, 6)
        self.assertEqual(model.decoder.embed.out_features, 24)
        self.assertEqual(len(model.decoder.blocks), 1)
        self.assertEqual(model.decoder.blocks[0].attn.num_heads, 2)

    def test_data(self):
        config = parse(
            "--data.batch_size=4",
            "--data.num_workers=1",
            "--data.pin_memory=true",
            "--data.dataset.window=[6,8,8]",
            "--data.dataset.train_stride=[2,3,5]",
            "--data.dataset.val_stride=[3,1,9]",
            "--data.dataset.train_months=[1,20]",
            "--data.dataset.val_months=[30,40]",
        )
        loaders = make_loaders(**vars(config.data), seed=3)
        self.assertEqual(loaders.train.batch_size, 4)
        self.assertEqual(loaders.train.num_workers, 1)
        self.assertTrue(loaders.train.pin_memory)
        self.assertEqual(loaders.sampler.seed, 3)
        self.assertIsInstance(loaders.train_set, FastDataset)
        self.assertEqual(loaders.train_set.sample_shape, (1, 6, 8, 8))
        self.assertEqual(sorted({t for t, _, _ in loaders.train_set.starts}), list(range(1, 15, 2)))
        self.assertEqual(sorted({y for _, y, _ in loaders.train_set.starts}), [0, 3, 6, 9])
        self.assertEqual(sorted({x for _, _, x in loaders.train_set.starts})[:3], [0, 5, 10])
        self.assertEqual(sorted({t for t, _, _ in loaders.val_set.starts}), [30, 33])
        self.assertEqual(sorted({x for _, _, x in loaders.val_set.starts})[:3], [0, 9, 18])

    def test_optimizer(self):
        config = parse(
            "--optimizer.lr=0.5",
            "--optimizer.betas=[0.1,0.2]",
            "--optimizer.weight_decay=0.3",
            "--optimizer.warmup_fraction=0.4",
        )
        model = MaskedAutoencoder((1, 12, 16, 32))
        optimizer, scheduler = make_optimizer(model, 10, **vars(config.optimizer))
        self.assertEqual(scheduler.base_lrs, [0.5, 0.5])
        self.assertEqual(optimizer.defaults["betas"], (0.1, 0.2))
        decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
        self.assertEqual(decays[id(model.encoder.embed.weight)], 0.3)
        self.assertEqual(decays[id(model.encoder.embed.bias)], 0.0)
        self.assertEqual(decays[id(model.encoder.norm.weight)], 0.0)
        self.assertEqual(decays[id(model.decoder.mask_token)], 0.0)
        # Four of the ten steps warm up, so the fifth has the full learning rate.
        self.assertEqual(scheduler.lr_lambdas[0](4), 1.0)
        self.assertLess(scheduler.lr_lambdas[0](3), 1.0)

    def test_seed(self):
        self.assertEqual(parse("--seed_everything=5").seed_everything, 5)


class TestPrecedence(unittest.TestCase):
    """Defaults, then the file, then the command line."""

    def test_later_wins(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mine.yaml"
            path.write_text("model:\n  depth: 7\n  num_heads: 8\n")
            config = parse("--config", str(path), "--model.num_heads=2")
        self.assertEqual((config.model.depth, config.model.num_heads), (7, 2))
        self.assertEqual(config.model.decoder_depth, 2)  # untouched: from config.yaml

    def test_resolved_config_gives_the_same_run(self):
        """The file that a run leaves behind repeats the run."""
        config, resolved = parse_config("test", ["--model.depth=5", "--data.dataset=DummyDataset"])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            path.write_text(resolved)
            again, resolved_again = parse_config("test", ["--config", str(path)])
        self.assertEqual(resolved, resolved_again)
        self.assertEqual(again.model, config.model)

    def test_another_dataset_takes_over_arguments_of_the_same_name(self):
        """So jsonargparse does it; a config for another dataset therefore states all of them."""
        dataset = ["--data.dataset=my_dataset.MyDataset", "--data.dataset.path=x.nc"]
        _, resolved = parse_config("test", [*dataset, "--data.dataset.variables=[a]"])
        arguments = yaml.safe_load(resolved)["data"]["dataset"]["init_args"]
        self.assertEqual(arguments["window"], [12, 16, 32])
        self.assertNotIn("train_stride", arguments)

    def test_shipped_configs_are_valid(self):
        for path in sorted((CHAPTER / "config").glob("*.yaml")):
            if "devices:" in path.read_text():  # for Lightning's Trainer alone
                continue
            with self.subTest(path.name):
                parse("--config", str(path))


class TestRefused(unittest.TestCase):
    """One clear line: the key, what was given, what is allowed."""

    def check(self, arguments: list[str], *expected: str) -> None:
        with self.assertRaises(UserError) as caught, contextlib.redirect_stderr(None):
            parse(*arguments)
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        self.assertLess(len(message), 900)
        for part in expected:
            self.assertIn(part, message)

    def test_unknown_key(self):
        self.check(["--model.mask_ration=0.5"], "mask_ration", "allowed", "model.mask_ratio")
        self.check(["--data.dataset.windw=[1,1,1]"], "windw", "allowed", "window")
        self.check(["--nonsense=1"], "nonsense", "allowed", "seed_everything")

    def test_unknown_key_in_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mine.yaml"
            path.write_text("model:\n  mask_ration: 0.5\n")
            self.check(["--config", str(path)], "mask_ration", "allowed", "model.mask_ratio")
            path.write_text("model: [1,\n")
            self.check(["--config", str(path)], "config")
        self.check(["--config", "absent.yaml"], "absent.yaml")

    def test_wrong_type(self):
        self.check(["--data.batch_size=many"], "data.batch_size", "many", "int")
        self.check(["--model.mask_ratio=high"], "model.mask_ratio", "high", "float")
        self.check(["--model.patch_size=[3,4]"], "model.patch_size", "[3, 4]")
        self.check(["--data.dataset.window=[1,2,x]"], "window", "x", "int")
        self.check(["--trainer.accelerator=tpu"], "trainer.accelerator", "tpu", "cpu")

    def test_unknown_dataset(self):
        for name in ("Oceandataset", "nowhere.MyDataset", "src.data.pytorch_dataset.Nothing"):
            with self.subTest(name):
                self.check([f"--data.dataset={name}"], name, "OceanDataset", "CIFAR10Dataset")


if __name__ == "__main__":
    unittest.main()
