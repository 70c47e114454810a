"""The command line and the YAML files: every key is an argument of what it configures.

jsonargparse (https://jsonargparse.readthedocs.io) reads keys, types, defaults and help texts from
signatures and docstrings. Chapter 1's LightningCLI does the same.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

import src.data.cifar10  # noqa: F401  its dataset can then be named without its module
from src.data.loaders import Loaders
from src.model.pytorch_model import MaskedAutoencoder
from src.run.errors import UserError
from src.run.optim import make_optimizer
from src.run.tracking import WandbMode

CHAPTER = Path(__file__).resolve().parents[2]
DEFAULT_FILE = CHAPTER / "config" / "config.yaml"
# What a resumed run has to keep: the checkpoint's weights and position fit nothing else.
FIXED_ON_RESUME = (
    "seed_everything",
    "model",
    "optimizer",
    "data.dataset",
    "data.batch_size",
)


@dataclass
class TrainerSettings:
    """How long, on what, and what is written. Lightning's Trainer has most of these names too.

    Args:
        max_epochs: passes over the training samples.
        max_steps: stop after this step, with the schedule of max_epochs; -1 means never.
        accelerator: cuda (NVIDIA, AMD), cpu, or mps (Apple), never tried; auto takes cuda or cpu.
        deterministic: repeatable kernels, where PyTorch has them; a little slower on a GPU.
        gradient_clip_val: largest allowed norm of the gradient; null allows any.
        log_every_n_steps: steps between two rows of training metrics.
        picture_every_n_epochs: epochs between two pictures, which also come at the end; 0 means
            none.
        checkpoint_every_n_steps: save inside an epoch too; 0 means at its end only.
        output_dir: folder for the runs; a relative one lies in the chapter's folder.
        wandb: where metrics go; null follows the variable WANDB_MODE, and else stays offline.
    """

    max_epochs: PositiveInt = 5
    max_steps: int = -1
    accelerator: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    deterministic: bool = True
    gradient_clip_val: PositiveFloat | None = 1.0
    log_every_n_steps: PositiveInt = 10
    picture_every_n_epochs: NonNegativeInt = 1
    checkpoint_every_n_steps: NonNegativeInt = 0
    output_dir: str = "output"
    wandb: WandbMode | None = None


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description, which lists commands."""


def parse_config(
    description: str,
    arguments: list[str] | None = None,
    model: type = MaskedAutoencoder,
    data: type = Loaders,
    settings: type = TrainerSettings,
) -> tuple[Namespace, str]:
    """The configuration, and the same as YAML.

    Defaults come from the signatures, then from one file: that of a run to resume, one that -c
    names, or config/config.yaml. The command line has the last word.

    Raises:
        UserError: a key or a value is wrong.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = make_parser(description, model, data, settings)
    # These two decide which file it is, so they are read before everything else.
    early = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False
    )
    early.add_argument("--resume")
    early.add_argument("-c", "--config", action="append", default=[])
    try:
        options, others = early.parse_known_args(arguments)
        files = options.config
        if not files and not options.resume:
            files = [str(DEFAULT_FILE)]
        # Files first, wherever they stood: a later option wins over an earlier one.
        arguments = [*(f"-c={file}" for file in files), *others]
        if options.resume:
            config = parse_resumed(parser, options.resume, arguments)
        else:
            config = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error

    # Without --resume: these settings also begin a new run.
    config.pop("resume")
    resolved = parser.dump(config, skip_unset=False)
    config.resume = options.resume
    # Turns data.dataset's class_path and init_args into a function of the split.
    # instantiate_groups=False leaves each section as arguments: the train script passes them on.
    config = parser.instantiate(config, instantiate_groups=False)
    for key, value in list(config.items()):
        config[key] = plain(value)
    return config, resolved


def make_parser(
    description: str, model: type, data: type, settings: type
) -> ArgumentParser:
    """A section for each class or function, with an option for each of its arguments."""
    # Without allow_abbrev=False, --model.dept 3 could be taken for another key, or for none.
    parser = ArgumentParser(
        description=description, exit_on_error=False, allow_abbrev=False
    )
    parser.formatter_class = HelpFormatter
    parser.add_argument(
        "-c", "--config", action="config", help="YAML file, by default config.yaml"
    )
    parser.add_argument(
        "--resume", type=str | None, help="go on with a run: its folder"
    )
    parser.add_argument(
        "--seed_everything",
        type=NonNegativeInt,
        default=0,
        help="of weights, order, masks",
    )
    parser.add_class_arguments(
        model, "model", skip={"sample_shape", "optimizer", "seed"}
    )
    parser.add_class_arguments(data, "data", skip={"seed"})
    parser.add_function_arguments(
        make_optimizer, "optimizer", skip={"model", "total_steps"}
    )
    parser.add_class_arguments(settings, "trainer")
    return parser


def parse_resumed(
    parser: ArgumentParser, folder: str, arguments: list[str]
) -> Namespace:
    """A run's own settings, with those that are given now and may change."""
    file = f"-c={folder}/config.yaml"
    saved = parser.parse_args([file])
    config = parser.parse_args([file, *arguments])
    for key in FIXED_ON_RESUME:
        if config.get(key) != saved.get(key):
            raise UserError(f"--resume: {key} differs from that of {folder}")
    return config


def plain(value: Any) -> Any:
    """The value with Python's own types in place of jsonargparse's, such as PositiveInt.

    Settings end up in checkpoints, and no type but Python's own can be read from there.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    for kind in (bool, int, float, str):
        # bool comes first, because a bool is an int as well.
        if isinstance(value, kind):
            return kind(value)
    return value


def unusable_card() -> str:
    """Why PyTorch cannot use this machine's NVIDIA card, as the end of a sentence.

    Empty if it can, or if there is none.
    """
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if torch.cuda.is_available() or is_hidden or not shutil.which("nvidia-smi"):
        return ""
    # A driver in trouble may never answer.
    smi = subprocess.run(
        ["timeout", "10", "nvidia-smi"], capture_output=True, text=True
    )
    # Newer drivers print "CUDA UMD Version".
    driver = re.search(r"CUDA (?:UMD )?Version: (\d\S*)", smi.stdout)
    if not driver:
        has_card = Path("/dev/nvidia0").exists()
        return "; the NVIDIA driver does not answer nvidia-smi" if has_card else ""
    needed = torch.version.cuda or "no GPU"
    return f"; the NVIDIA driver is for CUDA {driver[1]}, this PyTorch for {needed}"


def choose_device(accelerator: str) -> torch.device:
    """The device for auto, cuda, mps or cpu. Raises UserError if this machine does not have it."""
    available = [
        name for name in ("cuda", "mps") if getattr(torch, name).is_available()
    ]
    available.append("cpu")
    problem = unusable_card() if accelerator in ("auto", "cuda") else ""
    if accelerator not in ("auto", *available):
        raise UserError(
            f"trainer.accelerator: {accelerator}; this machine has {available}{problem}"
        )
    if problem:
        print(f"the GPU is not used{problem}")
    if accelerator == "auto":
        accelerator = "cuda" if "cuda" in available else "cpu"
    return torch.device(accelerator)
