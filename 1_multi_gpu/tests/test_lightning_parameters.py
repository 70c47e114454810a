"""Does every key reach the module, the data and the Trainer, from both programs?"""

# Run with `python -m unittest tests/test_lightning_parameters.py` or with pytest.
import sys
import unittest
from unittest import mock

import lightning_train
import lightning_trainer
import yaml
from src.config import CHAPTER

MODEL = {
    "patch_size": [6, 2, 8],
    "mask_ratio": 0.5,
    "embed_dim": 48,
    "depth": 3,
    "num_heads": 6,
}
OPTIMIZER = {
    "lr": 0.5,
    "betas": [0.1, 0.2],
    "weight_decay": 0.3,
    "warmup_fraction": 0.4,
}
DATA = {"batch_size": 12, "num_workers": 1}
TRAINER = {
    "max_epochs": 2,
    "accelerator": "cpu",
    "devices": 2,
    "num_nodes": 3,
    "strategy": "ddp",
}
SECTIONS = {"model": MODEL, "optimizer": OPTIMIZER, "data": DATA, "trainer": TRAINER}
ARGUMENTS = [
    f"--{name}.{key}={keys[key]}" for name, keys in SECTIONS.items() for key in keys
]


class TestEveryKeyArrives(unittest.TestCase):
    def check(self, module, data, trainer) -> None:
        self.assertEqual({key: module.hparams[key] for key in MODEL}, MODEL)
        self.assertEqual(module.hparams["optimizer"], OPTIMIZER)
        self.assertEqual({key: data.settings[key] for key in DATA}, DATA)
        self.assertEqual((module.hparams["seed"], data.seed), (7, 7))
        found = {
            key: str(trainer[key]) for key in TRAINER
        }  # Lightning's type of devices is str
        self.assertEqual(found, {key: str(value) for key, value in TRAINER.items()})

    @mock.patch("lightning_train.new_run_folder", print)  # returns no folder
    @mock.patch("lightning_train.L.Trainer")
    def test_script(self, trainer):
        with mock.patch.object(
            sys, "argv", ["train.py", "--seed_everything=7", *ARGUMENTS]
        ):
            lightning_train.main()
        self.check(*trainer.return_value.fit.call_args.args, trainer.call_args.kwargs)

    @mock.patch("lightning_trainer.new_run_folder", print)  # returns no folder
    @mock.patch.object(
        lightning_trainer.AutoencoderCLI, "_run_subcommand", autospec=True
    )
    def test_command_line(self, run):
        with mock.patch.object(
            sys, "argv", ["cli", "fit", "--seed_everything=7", *ARGUMENTS]
        ):
            lightning_trainer.main()
        (cli, _) = run.call_args.args
        self.check(cli.model, cli.datamodule, cli.config.fit.trainer)

    def test_both_files_have_the_same_sections(self):
        names = ("config.yaml", "cli_config.yaml")
        one, other = (
            yaml.safe_load((CHAPTER / "config" / name).read_text()) for name in names
        )
        self.assertIn(
            "OceanDataset", one["data"].pop("dataset")["class_path"]
        )  # the default
        for section in ("seed_everything", "model", "data", "optimizer"):
            self.assertEqual(one[section], other[section], section)
