"""The command line and the YAML files: every key is an argument of what it configures.

jsonargparse (https://jsonargparse.readthedocs.io) reads keys, types, defaults and help texts from
signatures and docstrings. Chapter 1's LightningCLI does the same.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from src.run.checkpoint import read_checkpoint
from src.run.errors import UserError
from src.run.optim import make_optimizer
from src.run.tracking import WandbMode

CHAPTER = Path(__file__).resolve().parents[2]
# What a resumed run has to keep: the checkpoint's weights and position fit nothing else.
FIXED_ON_RESUME = (
    "seed_everything",
    "model",
    "optimizer",
    "data.dataset",
    "data.batch_size",
)
# Endings of such keys that may change: from which copy samples are read, and how; not which.
FREE_ON_RESUME = (
    ".url",
    ".patience",
    ".dask",
    ".anonymous",
    ".statistics_store",
    ".batches_ahead",
    ".concurrency",
    ".cache_mb",
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
    checkpoint_every_n_steps: NonNegativeInt = 0
    output_dir: str = "output"
    wandb: WandbMode | None = None


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description, which lists commands."""


def parse_config(
    description: str, classes: tuple[type, ...], arguments: list[str] | None = None
) -> tuple[Namespace, str]:
    """The configuration, and the same as YAML.

    Defaults come from the signatures; then from the settings that --resume's checkpoint holds, or
    else from config/config.yaml, unless -c names another file. Of the options on the command line,
    -c included, a later one wins over an earlier one.

    Args:
        description: what --help says first.
        classes: whose arguments are the keys of the sections model, data and trainer.
        arguments: the command line; None takes that of the program.

    Raises:
        UserError: a key or a value is wrong, or one that a resumed run has to keep has changed.
    """
    parser = make_parser(description, *classes)
    arguments = sys.argv[1:] if arguments is None else arguments
    # Which file comes first has to be known before the other options are read.
    early = argparse.ArgumentParser(add_help=False)
    early.add_argument("--resume", type=Path)
    early.add_argument("-c", "--config")
    options, _ = early.parse_known_args(arguments)
    if options.resume:
        checkpoint = options.resume / "checkpoints/last.ckpt"
        saved = read_checkpoint(checkpoint).get("settings")
        if not saved:  # one of LightningCLI, for example
            raise UserError(f"{checkpoint} is no checkpoint of a train script")
        arguments = [f"-c={saved}", *arguments]  # YAML, as well as the name of a file
    elif not options.config:
        arguments = [f"-c={CHAPTER}/config/config.yaml", *arguments]
    try:
        config = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    config.resume = None  # it is no setting of the run
    resolved = parser.dump(config, skip_unset=False)
    if options.resume:
        check_unchanged(parser.parse_string(saved), config)

    # Turns data.dataset's class_path and init_args into a function of the split.
    # instantiate_groups=False leaves each section as arguments: the train script passes them on.
    config = parser.instantiate(config, instantiate_groups=False)
    config.resume = options.resume
    return config, resolved


def make_parser(
    description: str, model: type, data: type, settings: type
) -> ArgumentParser:
    """A section for each class or function, with an option for each of its arguments."""
    # Without allow_abbrev=False, --model.dept 3 could be taken for another key, or for none.
    parser = ArgumentParser(
        description=description,
        formatter_class=HelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-c", "--config", action="config", help="YAML file, by default config.yaml"
    )
    parser.add_argument("--resume", help="go on with a run: its folder")
    parser.add_argument(
        "--seed_everything", type=int, default=0, help="of weights, order, masks"
    )
    # What is skipped here, the train script passes on: it is no setting, or one for several.
    parser.add_class_arguments(
        model, "model", skip={"sample_shape", "optimizer", "seed"}
    )
    parser.add_class_arguments(data, "data", skip={"seed", "rank", "world_size"})
    parser.add_function_arguments(
        make_optimizer, "optimizer", skip={"model", "total_steps"}
    )
    parser.add_class_arguments(settings, "trainer")
    return parser


def check_unchanged(saved: Namespace, given: Namespace) -> None:
    """Raise UserError if a setting that a resumed run has to keep differs from the saved one."""
    for key in {*saved.keys(), *given.keys()}:  # such as optimizer.lr
        is_fixed = key.startswith(FIXED_ON_RESUME) and not key.endswith(FREE_ON_RESUME)
        if is_fixed and saved.get(key) != given.get(key):
            raise UserError(
                f"{key}: {given.get(key)}; the run to resume has {saved.get(key)}"
            )


def choose_device(accelerator: str) -> torch.device:
    """The device for auto, cuda, mps or cpu. Raises UserError if PyTorch cannot use it."""
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if not getattr(torch, accelerator).is_available():
        raise UserError(
            f"trainer.accelerator: PyTorch {torch.__version__} finds no {accelerator}; "
            "is the driver new enough? appendix/guide/install.md"
        )
    if accelerator == "cuda":
        # Kernels built for an older card mostly run on a newer one, and never the other way round.
        major, minor = torch.cuda.get_device_capability()
        # What it was built for, the oldest first: sm_75, ..., sm_90a. AMD's have other names.
        built = torch.cuda.get_arch_list()
        kind, _, oldest = built[0].partition("_")
        if kind == "sm" and int(oldest.rstrip("af")) > 10 * major + minor:
            raise UserError(
                f"PyTorch {torch.__version__} has no kernels for this card (sm_{major}{minor}), "
                f"only for {built}; which one has: appendix/guide/install.md"
            )
    return torch.device(accelerator)
