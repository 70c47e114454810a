"""The same training, with the command line that LightningCLI makes from the signatures.

uv run python -m lightning_trainer fit -c config/cli_config.yaml
uv run python -m lightning_trainer fit -c config/two_processes.yaml
uv run python -m lightning_trainer test --ckpt_path output/run_1/checkpoints/best.ckpt
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only

from src.data.checked_store import configure_libraries
from src.data.lightning_datamodule import FieldDataModule
from src.model.lightning_module import AutoencoderModule
from src.run.config import CHAPTER, choose_device
from src.run.errors import UserError, one_line_errors
from src.run.launch import has_rank, launch
from src.run.optim import make_optimizer
from src.run.quiet import hide_two_messages
from src.run.resume import hold
from src.run.tracking import new_run_folder

# Without this file there would be no Report and no StopAndSave; -c adds to it. A list replaces its.
DEFAULT = {
    "default_config_files": [f"{CHAPTER}/config/cli_config.yaml"],
    "allow_abbrev": False,
}


class AutoencoderCLI(LightningCLI):
    """Adds the section optimizer, one seed for everything, and a folder for each run."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the section optimizer, and hand it and the seed to module and data."""
        parser.add_function_arguments(
            make_optimizer, "optimizer", skip={"model", "total_steps"}
        )
        parser.link_arguments("optimizer", "model.optimizer", compute_fn=vars)
        # LightningCLI's seed_everything may be a bool; a seed is a number.
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def before_instantiate_classes(self) -> None:
        """Start the ranks, check the settings, choose the run's folder."""
        config = self.config[self.subcommand]
        launch_ranks(config.trainer)
        check_trainer(config.trainer)
        if self.subcommand != "fit" and not config.ckpt_path:
            raise UserError(
                "--ckpt_path: name a checkpoint, or untrained weights are scored"
            )

        # For "last", Lightning would begin anew, or score untrained weights, with a warning.
        if config.ckpt_path and not Path(config.ckpt_path).is_file():
            raise UserError(f"--ckpt_path: {config.ckpt_path} is no file")

        # Each run gets a folder of its own; a resumed training stays in its checkpoint's.
        if self.subcommand == "fit" and config.ckpt_path:
            folder = Path(config.ckpt_path).resolve().parents[1]
            check_resume(config, folder)
            config.trainer.default_root_dir = str(folder)
        elif rank_zero_only.rank == 0:
            folder = new_run_folder(CHAPTER / "output").resolve()
            config.trainer.default_root_dir = str(folder)
        if self.subcommand == "fit" and rank_zero_only.rank == 0:
            self.held = ExitStack()  # with this object
            hold(folder, self.held)


def launch_ranks(trainer: Namespace) -> None:
    """Run this command once for each device, and exit; a rank that is started so goes on."""
    devices = str(trainer.devices)
    # For "auto" or a list of devices, Lightning starts the processes.
    is_number = devices.isdigit() and int(devices) > 1
    if is_number and trainer.num_nodes == 1 and not has_rank():
        sys.exit(launch(int(devices)))


def check_resume(config: Namespace, folder: Path) -> None:
    """Raise UserError if the checkpoint's step is one among other samples, or in another order."""
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    data = json.loads(json.dumps(config.data.as_dict()))  # lists for tuples
    data.pop("seed")  # linked, so the file does not repeat it
    if data != saved.get("data") or config.seed_everything != saved["seed_everything"]:
        raise UserError(
            f"--ckpt_path: that run has other data, or another seed: -c {folder}/config.yaml"
        )


def check_trainer(trainer: Namespace) -> None:
    """Raise UserError for a setting of Lightning's Trainer that our module would ignore."""
    if "StopAndSave" not in str(trainer.callbacks):
        raise UserError(
            "trainer.callbacks: a list replaces ours; add with --trainer.callbacks+="
        )
    if trainer.accelerator in ("auto", "cuda"):
        trainer.accelerator = choose_device(trainer.accelerator).type
    if trainer.gradient_clip_algorithm not in (None, "norm"):
        raise UserError("trainer.gradient_clip_algorithm: our module clips by the norm")
    strategy = trainer.strategy
    if isinstance(strategy, str) and not strategy.startswith(("auto", "ddp")):
        raise UserError(f"trainer.strategy: our module works with ddp, not {strategy}")
    if trainer.max_steps != -1 or (trainer.max_epochs or 0) < 1:
        raise UserError(
            "trainer: the schedule counts max_epochs; StopAndSave has max_steps"
        )
    # The checkpoint of an epoch's last step comes after its validation (StopAndSave).
    interval = trainer.val_check_interval
    if trainer.check_val_every_n_epoch != 1 or interval not in (None, 1.0):
        raise UserError("trainer: validate at the end of each epoch, which also saves")


def main() -> None:
    """Read the command line and run the subcommand."""
    hide_two_messages()
    configure_libraries()
    # As in lightning_train.py.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # A resumed run writes its config.yaml again.
    AutoencoderCLI(
        AutoencoderModule,
        FieldDataModule,
        auto_configure_optimizers=False,  # the module makes its optimizer
        save_config_kwargs={"overwrite": True},
        parser_kwargs={"allow_abbrev": False}
        | dict.fromkeys(LightningCLI.subcommands(), DEFAULT),
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
