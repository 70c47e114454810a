"""Does every key reach the module, the data and the Trainer, from both programs?"""

# Run with `python -m unittest tests/test_lightning_parameters.py` or with pytest.
import json
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

import lightning_train
import lightning_trainer
import torch
import yaml

from src.config import CHAPTER
from src.data.pytorch_dataset import FieldDataset
from src.model.lightning_module import AutoencoderModule

KEYS = yaml.safe_load((CHAPTER / "tests" / "lightning_keys.yaml").read_text())
ARGUMENTS = [
    "--seed_everything=7",
    *(f"--{key}={value}" for key, value in KEYS.items()),
]


class FirstSample(FieldDataset):
    """Makes a tensor, as a dataset may; on a GPU it would not fit to those that are read."""

    def __getitem__(self, index):
        new = torch.zeros(1, 12, 16, 32)
        assert new.device.type == "cpu"
        return new, index


class TestEveryKeyArrives(unittest.TestCase):
    def check(self, module, data, trainer) -> None:
        sections = {"model": module.hparams, "data": data.settings, "trainer": trainer}
        sections["optimizer"] = module.hparams["optimizer"]
        for key, value in KEYS.items():
            section, name = key.split(".")
            found = json.dumps(sections[section][name])  # a list for a tuple
            self.assertEqual(found.strip('"'), json.dumps(value).strip('"'), key)
        self.assertEqual((module.hparams["seed"], data.seed), (7, 7))

    @mock.patch("lightning_train.new_run_folder", mock.MagicMock())
    @mock.patch("lightning_train.L.Trainer")
    def test_script(self, trainer):
        with mock.patch.object(sys, "argv", ["train.py", *ARGUMENTS]):
            lightning_train.main()
        self.check(*trainer.return_value.fit.call_args.args, trainer.call_args.kwargs)

    @mock.patch("lightning_trainer.new_run_folder", mock.MagicMock())
    @mock.patch.object(
        lightning_trainer.AutoencoderCLI, "_run_subcommand", autospec=True
    )
    def test_command_line(self, run):
        with mock.patch.object(sys, "argv", ["cli", "fit", *ARGUMENTS]):
            lightning_trainer.main()
        (cli, _) = run.call_args.args
        self.check(cli.model, cli.datamodule, cli.config.fit.trainer)

    def test_weights_and_the_first_sample_are_made_on_the_cpu(self):
        """As chapter 0 makes them. Broken by: no torch.device in configure_model, or a late one."""
        module = AutoencoderModule()
        data = SimpleNamespace(train_set=FirstSample())
        module.trainer = SimpleNamespace(datamodule=data)
        with torch.device("meta"):  # Lightning has the GPU's there
            module.configure_model()
        devices = {parameter.device.type for parameter in module.parameters()}
        self.assertEqual(devices, {"cpu"})

    def test_both_files_have_the_same_sections(self):
        names = ("config.yaml", "cli_config.yaml")
        one, other = (
            yaml.safe_load((CHAPTER / "config" / name).read_text()) for name in names
        )
        # The default.
        self.assertIn("OceanDataset", one["data"].pop("dataset")["class_path"])
        for section in ("seed_everything", "model", "data", "optimizer"):
            self.assertEqual(one[section], other[section], section)
