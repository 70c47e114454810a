"""What the instruments share: options, and a training with all its callbacks, as it really runs."""

import argparse
import os
import pkgutil
import platform
import sys
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.profilers import Profiler
from lightning_trainer import AutoencoderCLI

from src.config import CHAPTER, choose_device
from src.errors import UserError
from src.model.lightning_module import AutoencoderModule
from src.tracking import new_run_folder

# Yours: replace these three, or name them on the command line.
MODEL = "src.model.lightning_module.AutoencoderModule"
DATA = "src.data.lightning_datamodule.FieldDataModule"
CONFIG = f"{CHAPTER}/config/cli_config.yaml"
PRECISIONS = ("32", "16-mixed", "bf16-mixed", "16")  # to Lightning, 16 is 16-mixed


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that choose what is trained, and on what."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "-c",
        "--config",
        default=CONFIG,
        help="YAML file; --model.depth 4 changes a key of it",
    )
    add("--model-class", default=MODEL, help="import path of a LightningModule")
    add("--data-class", default=DATA, help="import path of a LightningDataModule")
    add(
        "--precision",
        default="32",
        choices=PRECISIONS,
        help="numbers that a step computes in",
    )
    add(
        "--device",
        default="auto",
        help="cuda, mps or cpu; auto takes the first that is available",
    )
    return parser


def import_class(path: str, kind: type) -> Any:
    """A subclass of ``kind``. Raises UserError if there is none of that name."""
    # Classes in the current folder can be imported then.
    sys.path.insert(0, str(Path.cwd()))
    try:
        loaded: Any = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"cannot import {path}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, kind)):
        raise UserError(f"{path} is no {kind.__name__}")
    return loaded


def build(
    chosen: argparse.Namespace,
    overrides: list[str],
    folder: str,
    callbacks: list[Callback],
) -> LightningCLI:
    """Module, data and Trainer with the config's callbacks and these, which write to ``folder``."""
    # To start it would take longer than the steps.
    os.environ.setdefault("WANDB_MODE", "disabled")
    model_class = import_class(chosen.model_class, L.LightningModule)
    data_class = import_class(chosen.data_class, L.LightningDataModule)
    device = choose_device(chosen.device).type
    if chosen.precision.startswith("16") and device == "cpu":
        # Lightning would take bfloat16.
        raise UserError(
            f"--precision {chosen.precision}: needs a GPU; 32 and bf16-mixed do not"
        )
    is_ours = issubclass(model_class, AutoencoderModule)

    # Without a subcommand (run=False) the parent's hook has no section to read.
    class Instrument(AutoencoderCLI if is_ours else LightningCLI):  # type: ignore[misc]
        def before_instantiate_classes(self) -> None:
            self.config.trainer.default_root_dir = str(new_run_folder(Path(folder)))

    trainer = [
        f"--trainer.precision={chosen.precision}",
        f"--trainer.accelerator={device}",
    ]
    # Not LightningCLI(args=...), which warns if sys.argv has words, too. They are put back below:
    # Lightning starts the other ranks with them.
    original, sys.argv[1:] = (
        sys.argv[1:],
        [f"--config={chosen.config}", *trainer, *overrides],
    )
    cli = Instrument(
        model_class,
        data_class,
        run=False,
        save_config_callback=None,
        auto_configure_optimizers=not is_ours,
        parser_kwargs={"allow_abbrev": False},
        trainer_defaults={"callbacks": callbacks},
    )
    sys.argv[1:] = original
    return cli


def fit(cli: LightningCLI, profiler: Profiler) -> None:
    """Train, watched by a profiler. Raises UserError if there was no batch."""
    if cli.trainer.progress_bar_callback and not sys.stderr.isatty():
        cli.trainer.progress_bar_callback.disable()
    cli.trainer.profiler = (
        profiler  # now: a StepTimer needs the device that the Trainer has chosen
    )
    with redirect_stdout(sys.stderr):  # stdout is kept for the results
        cli.trainer.fit(cli.model, cli.datamodule)
    if not cli.trainer.global_step:
        raise UserError(
            "the training loader has no batch: fewer samples than batch_size?"
        )


def new_folder(save_dir: str | None, kind: str) -> Path:
    """The folder for results. Raises UserError if there is something in it."""
    if not save_dir:
        return CHAPTER / "results" / kind / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    if any(Path(save_dir).glob("*")):
        raise UserError(f"--save-dir {save_dir}: is in use; choose a new folder")
    return Path(save_dir)


def describe(trainer: L.Trainer, precision: str) -> str:
    """What the figures were measured on."""
    device = trainer.strategy.root_device
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.machine()
    )
    return f"{name}, {torch.get_num_threads()} threads; PyTorch {torch.__version__}; {precision}"
