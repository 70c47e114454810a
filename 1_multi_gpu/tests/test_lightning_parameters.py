"""Does every key reach the module, the data and the Trainer, from both programs?"""

import json
from unittest.mock import Mock

import lightning_train
import lightning_trainer
import torch
import yaml

from src.model.lightning_module import AutoencoderModule
from src.run.config import CHAPTER
from tests.runs import call

KEYS = yaml.safe_load((CHAPTER / "tests" / "lightning_keys.yaml").read_text())
ARGUMENTS = [
    "--seed_everything=7",
    *(f"--{key}={value}" for key, value in KEYS.items()),
]


def assert_arrived(module, data, trainer):
    sections = {"model": module.hparams, "data": data.settings, "trainer": trainer}
    sections["optimizer"] = module.hparams["optimizer"]
    for key, value in KEYS.items():
        section, name = key.split(".")
        found = json.dumps(sections[section][name])  # a list for a tuple
        assert found.strip('"') == json.dumps(value).strip('"'), key
    assert module.hparams["seed"] == data.seed == 7


def test_every_key_of_the_script_arrives(monkeypatch):
    trainer = Mock()
    monkeypatch.setattr(lightning_train, "new_run_folder", Mock())
    monkeypatch.setattr(lightning_train.L, "Trainer", trainer)
    call(monkeypatch, *ARGUMENTS, script=lightning_train)
    assert_arrived(*trainer.return_value.fit.call_args.args, trainer.call_args.kwargs)


def test_every_key_of_the_command_line_arrives(monkeypatch):
    started = []
    monkeypatch.setattr(lightning_trainer, "new_run_folder", Mock())
    kind = lightning_trainer.AutoencoderCLI
    monkeypatch.setattr(kind, "_run_subcommand", lambda cli, _: started.append(cli))
    call(monkeypatch, "fit", *ARGUMENTS, script=lightning_trainer)
    (cli,) = started
    assert_arrived(cli.model, cli.datamodule, cli.config.fit.trainer)


def test_weights_are_made_on_the_cpu():
    """As chapter 0 makes them. Broken by: no torch.device in configure_model."""
    module = AutoencoderModule(sample_shape=[1, 12, 16, 32])
    with torch.device("meta"):  # Lightning has the GPU's there
        module.configure_model()
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}
