"""What the instruments share: a module and its data from a config, and a Trainer that times them.

Any LightningModule and LightningDataModule will do. They are built as LightningCLI builds them,
from the sections ``model`` and ``data`` of a config file; of the section ``trainer`` only that
counts which decides how a step is computed. Nothing is saved, no picture is drawn, nothing is
validated.
"""

import argparse
import importlib
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from src.config import CHAPTER
from src.config_errors import explain
from src.device import choose_device
from src.errors import UserError
from src.lightning_cli import plain
from src.lightning_settings import make_strategy
from src.model.lightning_module import AutoencoderModule
from src.optim import make_optimizer

MODULE = "src.model.lightning_module.AutoencoderModule"
DATA = "src.data.lightning_datamodule.FieldDataModule"
CONFIG = "config/cli_config.yaml"
# Of the config's Trainer: what changes how a step is computed.
KEPT = (
    "accumulate_grad_batches",
    "benchmark",
    "deterministic",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "log_every_n_steps",
    "sync_batchnorm",
    "use_distributed_sampler",
)
# As the command line has them, and as Lightning calls them.
PRECISIONS = {"32": "32-true", "16-mixed": "16-mixed", "bf16-mixed": "bf16-mixed", "16": "16-true"}


class Training(NamedTuple):
    """What shall be timed, and how."""

    module: L.LightningModule
    data: L.LightningDataModule
    trainer: dict[str, Any]  # arguments of Trainer
    resolved: dict[str, Any]  # all settings, for the record


class Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the line breaks of the description, and shows the defaults."""


def new_folder(save_dir: str | None, kind: str) -> Path:
    """The folder of the results, which nothing else is in: results/KIND/TIMESTAMP if none is given.

    Raises UserError if something is in it.
    """
    if not save_dir:
        return CHAPTER / "results" / kind / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(save_dir)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--save-dir: {save_dir} is in use; allowed: a new or an empty folder")
    return folder


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that choose what is trained, and on what."""
    parser = argparse.ArgumentParser(
        description=f"{description}\nAll other arguments override keys of the config, such as "
        "--model.depth 4 or\n--data.batch_size 8.",
        formatter_class=Formatter,
        allow_abbrev=False,
        exit_on_error=False,
    )
    add = parser.add_argument
    add("-c", "--config", default=CONFIG, help="YAML file with the sections model, data, trainer")
    add("--model-class", default=MODULE, help="import path of a LightningModule")
    add("--data-class", default=DATA, help="import path of a LightningDataModule")
    add("--precision", default="32", choices=list(PRECISIONS), help="numbers that steps compute in")
    add("--device", default="auto", help="cuda, mps or cpu; auto takes the first that is there")
    add("--devices", type=int, default=1, help="processes, with a device each, that train with DDP")
    return parser


def parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """The options and the overrides. Raises UserError with one line."""
    try:
        chosen, overrides = parser.parse_known_args()
    except argparse.ArgumentError as error:
        raise UserError(str(error).removeprefix("argument ")) from error
    if stray := [word for word in overrides if word.startswith("-") and "." not in word]:
        names = ", ".join(action.option_strings[-1] for action in parser._actions)
        given = stray[0].partition("=")[0]
        raise UserError(f"{given} is no option; allowed: {names}, and --SECTION.KEY")
    return chosen, overrides


def import_class(path: str, base: type, option: str) -> type:
    """The class of an import path. Raises UserError if it is none, or none of that kind."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module or name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{option}: cannot import {path}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, base):
        raise UserError(f"{option}: {path} is no {base.__name__}")
    return found


def read_training(chosen: argparse.Namespace, overrides: Sequence[str]) -> Training:
    """Build module and data. Raises UserError for what does not fit together."""
    model_class = import_class(chosen.model_class, L.LightningModule, "--model-class")
    data_class = import_class(chosen.data_class, L.LightningDataModule, "--data-class")
    place = Path(chosen.config)
    place = place if place.is_file() or place.is_absolute() else CHAPTER / place
    if not place.is_file():
        raise UserError(f"--config: there is no file {chosen.config}")
    parser = make_parser(model_class, data_class)
    try:
        config = parser.parse_args([f"--config={place}", *overrides])
        resolved = yaml.safe_load(parser.dump(config, skip_unset=False, skip_link_targets=False))
        L.seed_everything(config.seed_everything, workers=True, verbose=False)
        built = parser.instantiate_classes(config)
    except argparse.ArgumentError as error:
        message = explain(str(error), parser)
        names = f"{model_class.__name__} and {data_class.__name__}"
        raise UserError(f"{chosen.config} does not fit {names}: {message}") from error
    except (TypeError, yaml.YAMLError) as error:
        raise UserError(f"{chosen.config}: {' '.join(str(error).split())}") from error
    trainer = {key: config.trainer[key] for key in KEPT if key in (config.trainer or {})}
    trainer |= device_settings(chosen.device, chosen.devices, chosen.precision)
    resolved = {"model_class": chosen.model_class, "data_class": chosen.data_class} | resolved
    resolved["trainer"] = trainer
    return Training(built.model, built.data, trainer, resolved)


def make_parser(model_class: type, data_class: type) -> LightningArgumentParser:
    """The sections of a config for these classes."""
    parser = LightningArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--seed_everything", type=int, default=0)
    parser.add_lightning_class_args(model_class, "model")
    parser.add_lightning_class_args(data_class, "data")
    parser.add_argument("--trainer", type=dict[str, Any] | None, default=None)
    if issubclass(model_class, AutoencoderModule):  # as AutoencoderCLI has them
        parser.add_function_arguments(make_optimizer, "optimizer", skip={"model", "total_steps"})
        parser.link_arguments("optimizer", "model.optimizer", compute_fn=plain)
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
    return parser


def device_settings(device: str, devices: int, precision: str) -> dict[str, Any]:
    """The Trainer's device, strategy and precision. Raises UserError for what is not there."""
    kind = choose_device(device).type
    if precision.startswith("16") and kind == "cpu":
        # Lightning would take bfloat16 instead, and say nothing.
        raise UserError(f"--precision: {precision} needs a GPU; allowed on the CPU: 32, bf16-mixed")
    if devices < 1 or (kind == "cuda" and devices > torch.cuda.device_count()):
        raise UserError(f"--devices: {devices} are not here; allowed: 1 to the number of devices")
    return {
        "accelerator": kind,
        "devices": devices,
        "strategy": make_strategy("ddp" if devices > 1 else "auto", devices),
        "precision": PRECISIONS[precision],
    }


def fit(training: Training, profiler: Profiler, **settings: Any) -> L.Trainer:
    """Train, watched by a profiler. Raises UserError if there is not a single batch."""
    trainer = L.Trainer(
        **{**training.trainer, **settings},
        profiler=profiler,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    # An empty loader is an error below; few batches are meant.
    warnings.filterwarnings("ignore", message=".*across ranks is zero")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval")
    try:
        trainer.fit(training.module, training.data)
    except MisconfigurationException as error:
        raise UserError(" ".join(str(error).split())) from error
    if not trainer.global_step:
        raise UserError("the training loader has no batch: fewer samples than batch_size?")
    return trainer
