"""Does every key reach the module, the data and the Trainer, from both programs?

Run with ``python -m unittest tests/test_lightning_parameters.py`` or with pytest.
"""

import contextlib
import inspect
import sys
import unittest
from typing import Any
from unittest import mock

import lightning as L
import lightning_train
import lightning_trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from src.config import CHAPTER
from src.data.lightning_datamodule import FieldDataModule
from src.data.loaders import make_loaders
from src.data.usecase_cloud_dataset import CloudDataset
from src.lightning_checkpoint import AtomicCheckpointIO
from src.lightning_cli import AutoencoderCLI
from src.model.lightning_module import AutoencoderModule

CONFIGS = [CHAPTER / "config" / name for name in ("config.yaml", "cli_config.yaml")]
SETTINGS = {  # no value is that of the files
    "seed_everything": 7,
    "model.patch_size": [6, 2, 8],
    "model.mask_ratio": 0.5,
    "model.embed_dim": 48,
    "model.depth": 3,
    "model.num_heads": 6,
    "model.decoder_embed_dim": 24,
    "model.decoder_depth": 1,
    "model.decoder_num_heads": 3,
    "model.norm_pix_loss": True,
    "data.batch_size": 12,
    "data.num_workers": 1,
    "data.pin_memory": True,
    "data.dataset.window": [6, 8, 8],
    "data.dataset.train_stride": [2, 3, 5],
    "data.dataset.val_stride": [3, 1, 9],
    "data.dataset.train_months": [1, 20],
    "data.dataset.val_months": [30, 40],
    "optimizer.lr": 0.5,
    "optimizer.betas": [0.1, 0.2],
    "optimizer.weight_decay": 0.3,
    "optimizer.warmup_fraction": 0.25,
}
TRAINER = {
    "accelerator": "cpu",
    "devices": 2,
    "num_nodes": 3,
    "strategy": "ddp",
    "max_epochs": 2,
    "max_steps": 9,
    "gradient_clip_val": 0.5,
    "log_every_n_steps": 3,
    "use_distributed_sampler": False,
}
ARGUMENTS = [f"--{key}={value}" for key, value in SETTINGS.items()]
ARGUMENTS += [f"--trainer.{key}={value}" for key, value in list(TRAINER.items())[:-1]]


class Built(Exception):  # noqa: N818
    """Raised where the training would begin."""


def script(*arguments: str) -> tuple[AutoencoderModule, FieldDataModule, dict[str, Any]]:
    """What lightning_train.py builds, and the arguments of its Trainer."""
    with (
        mock.patch.object(L, "Trainer") as trainer,
        mock.patch.object(sys, "argv", ["lightning_train.py", *arguments]),
        contextlib.suppress(Built),
    ):
        trainer.return_value.fit.side_effect = Built
        lightning_train.main()
    module, data = trainer.return_value.fit.call_args.args
    return module, data, trainer.call_args.kwargs


def cli(*arguments: str) -> tuple[AutoencoderModule, FieldDataModule, dict[str, Any]]:
    """What LightningCLI builds, and the configuration of its Trainer."""
    with (
        mock.patch.object(AutoencoderCLI, "_run_subcommand", autospec=True) as run,
        mock.patch.object(sys, "argv", ["lightning_trainer", "fit", *arguments]),
    ):
        lightning_trainer.main()
    built = run.call_args.args[0]
    settings = vars(built.config.fit.trainer) | {"devices": built.trainer.num_devices}
    return built.model, built.datamodule, settings


class TestEveryKeyArrives(unittest.TestCase):
    def test_data_module_has_chapter_0s_arguments(self):
        ours, theirs = (inspect.signature(of).parameters for of in (FieldDataModule, make_loaders))
        self.assertEqual(list(ours.values()), list(theirs.values()))

    def test_sections_are_word_for_word_those_of_config_yaml(self):
        """All but the classes that are named beside the sections."""
        for section in ("model", "data", "optimizer"):
            with self.subTest(section):
                texts = [path.read_text().split(f"\n{section}:")[1] for path in CONFIGS]
                ours, theirs = (text.split("\n\n")[0].splitlines()[1:] for text in texts)
                self.assertEqual(ours, theirs)

    def test_module_data_and_trainer(self):
        for program in (script, cli):
            with self.subTest(program.__name__):
                module, data, trainer = program(*ARGUMENTS)
                found = {f"model.{k}": v for k, v in module.hparams.items()}
                found |= {f"optimizer.{k}": v for k, v in module.hparams["optimizer"].items()}
                for key in SETTINGS:
                    if key.startswith(("model", "optimizer")):
                        value = list(found[key]) if isinstance(found[key], tuple) else found[key]
                        self.assertEqual(value, SETTINGS[key], key)
                self.assertEqual((module.hparams["seed"], data.seed), (7, 7))
                self.assertEqual({key: trainer[key] for key in TRAINER}, TRAINER)
                self.check_data(data)

    def check_data(self, data: FieldDataModule) -> None:
        data.setup("fit")
        self.assertIsInstance(data.train_set, CloudDataset)
        self.assertEqual(data.train_set.sample_shape, (1, 6, 8, 8))
        self.assertEqual(sorted({t for t, _, _ in data.train_set.starts}), list(range(1, 15, 2)))
        self.assertEqual(sorted({x for _, _, x in data.train_set.starts})[:3], [0, 5, 10])
        self.assertEqual(sorted({t for t, _, _ in data.val_set.starts}), [30, 33])
        self.assertEqual(sorted({x for _, _, x in data.val_set.starts})[:3], [0, 9, 18])
        loader = data.train_dataloader()
        self.assertEqual((data.batch_size, loader.num_workers, loader.pin_memory), (12, 1, True))

    def test_what_the_script_adds_to_the_trainer(self):
        *_, trainer = script(
            "--trainer.devices=2", "--trainer.strategy=fsdp", "--trainer.accelerator=cpu"
        )
        self.assertIsInstance(trainer["strategy"], ModelParallelStrategy)
        self.assertIsInstance(trainer["plugins"][0], AtomicCheckpointIO)
        self.assertEqual(trainer["deterministic"], "warn")


if __name__ == "__main__":
    unittest.main()
