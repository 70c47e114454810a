"""The command line and the YAML files: every key is an argument of what it configures.

jsonargparse reads the keys, types, defaults and help texts from the signatures and docstrings, so
there is no second list to keep in step. Chapter 1's LightningCLI uses the same library and the same
sections.
"""

import argparse
import glob
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

import src.data.cifar10  # noqa: F401  its dataset can then be named without its module
from src.config_errors import explain
from src.data.loaders import make_loaders
from src.errors import UserError
from src.model.pytorch_model import MaskedAutoencoder
from src.optim import make_optimizer
from src.tracking import WandbMode

CHAPTER = Path(__file__).resolve().parents[1]

# The smallest value that makes sense, for keys whose type says no more than "a number".
LEAST = {
    "model.depth": 1,
    "model.decoder_depth": 1,
    "data.batch_size": 1,
    "data.num_workers": 0,
    "optimizer.weight_decay": 0,
    "trainer.max_epochs": 1,
    "trainer.log_every_n_steps": 1,
    "trainer.picture_every_n_epochs": 0,
    "trainer.checkpoint_every_n_steps": 0,
}


@dataclass
class TrainerSettings:
    """How long, on what, and what is left behind. The names are those of Lightning's Trainer.

    Args:
        max_epochs: passes over the training samples.
        max_steps: stop when this step is reached, with the schedule of max_epochs; -1 means never.
        accelerator: cuda (NVIDIA, AMD), mps (Apple), cpu; auto takes the first that is there.
        deterministic: repeatable kernels, where PyTorch has them; a little slower on a GPU.
        gradient_clip_val: largest allowed norm of the gradient.
        log_every_n_steps: steps between two rows of training metrics.
        picture_every_n_epochs: epochs between two pictures; 0 means at the end only.
        checkpoint_every_n_steps: save inside an epoch too; 0 means at its end only.
        output_dir: folder for the runs; a relative one lies in the chapter's folder.
        wandb: where metrics go; null follows the variable WANDB_MODE, and else stays offline.
    """

    max_epochs: int = 5
    max_steps: int = -1
    accelerator: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    deterministic: bool = True
    gradient_clip_val: float = 1.0
    log_every_n_steps: int = 10
    picture_every_n_epochs: int = 1
    checkpoint_every_n_steps: int = 0
    output_dir: str = "output"
    wandb: WandbMode | None = None


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description, which lists commands."""


def make_parser(description: str, settings: type[TrainerSettings]) -> ArgumentParser:
    """The parser of the train script: the sections model, data, optimizer and trainer."""
    parser = ArgumentParser(
        description=description,
        usage="%(prog)s [-c FILE] [--resume RUN] [--SECTION.KEY VALUE ...]",
        formatter_class=HelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,  # a key that is cut short is a typing error
    )
    parser.add_argument(
        "-c", "--config", action="config", help="YAML file; later arguments override it"
    )
    parser.add_argument(
        "--resume", type=str | None, help="continue a run: its folder, or one of its checkpoints"
    )
    parser.add_argument(
        "--seed_everything", type=int, default=0, help="seed of weights, order and masks"
    )
    parser.add_class_arguments(MaskedAutoencoder, "model", skip={"sample_shape", "seed"})
    parser.add_function_arguments(make_loaders, "data", skip={"seed"})
    parser.add_function_arguments(make_optimizer, "optimizer", skip={"model", "total_steps"})
    parser.add_class_arguments(settings, "trainer")
    return parser


def parse_config(
    description: str,
    arguments: Sequence[str] | None = None,
    settings: type[TrainerSettings] = TrainerSettings,
) -> tuple[Namespace, str]:
    """Read the command line; return the instantiated configuration and the same as YAML.

    A run that is resumed starts from its own resolved config.yaml, any other one from
    config/config.yaml. ``settings`` has the keys of the section trainer. Raises UserError with one
    line for anything that does not fit.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = make_parser(description, settings)
    resume = resumed_run(arguments)
    defaults = run_folder(resume) if resume else CHAPTER / "config"
    parser.default_config_files = [glob.escape(str(defaults / "config.yaml"))]
    try:
        config = parser.parse_args(arguments)
        resolved = parser.dump(config, skip_unset=False)
        check_numbers(config)
        return parser.instantiate(config, instantiate_groups=False), resolved
    except argparse.ArgumentError as error:
        raise UserError(explain(str(error), parser)) from error


def resumed_run(arguments: Sequence[str]) -> str | None:
    """What ``--resume`` names on the command line, before it is parsed."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--resume")
    return early.parse_known_args(arguments)[0].resume


def run_folder(resume: str) -> Path:
    """The folder of the run that ``--resume`` names by its folder or by a checkpoint inside."""
    path = Path(resume)
    folder = path.parent.parent if path.suffix else path
    if not (folder / "config.yaml").is_file():
        raise UserError(
            f"--resume: {path} is neither the folder of a run nor a checkpoint inside one"
        )
    return folder


def check_numbers(config: Namespace) -> None:
    """Raise UserError for a number of the right type that makes no sense."""
    for key, least in LEAST.items():
        if config[key] < least:
            raise UserError(f"{key}: {config[key]} is too small; allowed: {least} and more")
    if config.trainer.gradient_clip_val <= 0:
        given = config.trainer.gradient_clip_val
        raise UserError(f"trainer.gradient_clip_val: {given} is not positive; allowed: above 0")
    if config.trainer.max_steps < 1 and config.trainer.max_steps != -1:
        given = config.trainer.max_steps
        raise UserError(
            f"trainer.max_steps: {given} is neither -1 nor positive; allowed: -1, or 1 up"
        )
    if not all(0 <= beta < 1 for beta in config.optimizer.betas):
        given = list(config.optimizer.betas)
        raise UserError(f"optimizer.betas: {given} is outside; allowed: two numbers from 0 up to 1")
