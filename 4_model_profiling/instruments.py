"""What the instruments share: their options, and a training with its callbacks, as it really runs.

Your own module and data module: change the two imports in lightning_train.py, as in chapter 1, or
name them on the command line.
"""

import argparse
import pkgutil
import platform
import sys
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import Profiler
from lightning_train import (
    AutoencoderModule,
    FieldDataModule,
    LightningSettings,
    build_training,
)

from src.callbacks.loader_report import LoaderReport
from src.callbacks.report_callback import Report
from src.callbacks.stop_and_save import StopAndSave
from src.run.config import CHAPTER, DEFAULT_FILE, choose_device, parse_config
from src.run.errors import UserError

# What the matrix products of a step compute in, for each --precision.
DTYPES = {
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
}


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all instruments have. What they do not know is a setting of the training."""
    parser = argparse.ArgumentParser(
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Settings of lightning_train.py work here, too: --data.batch_size 64. The number of"
        " steps, checkpoints and wandb are the instrument's.",
    )
    parser.add_argument(
        "-c",
        "--config",
        action="append",
        default=[],
        help="YAML file; default config.yaml",
    )
    parser.add_argument(
        "--model-class",
        type=import_class,
        default=AutoencoderModule,
        help="import path of your LightningModule",
    )
    parser.add_argument(
        "--data-class",
        type=import_class,
        default=FieldDataModule,
        help="import path of your LightningDataModule",
    )
    parser.add_argument(
        "--precision",
        default="32-true",
        choices=list(DTYPES),
        help="numbers that a step computes in; default 32-true",
    )
    return parser


class StepReport(Report):
    """Logs as in the real training, and draws and scores nothing at its end."""

    def on_fit_end(self, *_: object) -> None:
        """Only the steps are watched."""


class StopWithoutAdvice(StopAndSave):
    """Asks the ranks in each step, as in the real training; what it saves is deleted at the end."""

    def stop(self, trainer: L.Trainer) -> None:
        """Exit, and print nothing about how to resume."""
        sys.exit(128 + self.number)


class Training:
    """A training to be watched, with the callbacks of lightning_train.py but for its checkpoints.

    Args:
        options: the options of make_parser.
        overrides: settings of the training, as words of a command line.
        callbacks: more of them.
        trainer: further arguments of Lightning's Trainer.

    Raises:
        UserError: a setting is wrong.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        overrides: list[str],
        callbacks: list[Callback] | None = None,
        **trainer: Any,
    ) -> None:
        model = options.model_class
        data = options.data_class
        files = [f"-c={file}" for file in options.config or [DEFAULT_FILE]]
        config, self.settings = parse_config(
            "", [*files, *overrides], model, data, LightningSettings
        )
        if config.trainer.max_steps != -1:
            raise UserError("--trainer.max_steps: an instrument has --steps")
        device = choose_device(config.trainer.accelerator)
        if options.precision == "16-mixed" and device.type == "cpu":
            # Lightning would take bfloat16.
            raise UserError("--precision 16-mixed: needs a GPU; bf16-mixed does not")
        self.precision = options.precision
        self.folder = TemporaryDirectory()  # deleted with this object
        self.trainer, self.module, self.data = build_training(
            config,
            Path(self.folder.name),
            [
                StepReport(wandb="disabled", picture_every_n_epochs=0),
                StopWithoutAdvice(),
                LoaderReport(),
                *(callbacks or []),
            ],
            model,
            data,
            precision=options.precision,
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **trainer,
        )

    def fit(self, profiler: Profiler) -> None:
        """Train, watched by a profiler."""
        self.trainer.profiler = profiler
        # What the training says is no result.
        with redirect_stdout(sys.stderr):
            self.trainer.fit(self.module, self.data)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.trainer.strategy.root_device

    @property
    def batch_size(self) -> Any:
        """Samples in a step, on all devices; None if the data module does not say it."""
        return getattr(self.data, "batch_size", self.data.hparams.get("batch_size"))

    def describe(self) -> str:
        """What the figures were measured on."""
        name = platform.machine()
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        return (
            f"{name}, {torch.get_num_threads()} threads; PyTorch {torch.__version__};"
            f" precision {self.precision}; batch size {self.batch_size or 'unknown'}"
        )


def import_class(path: str) -> type:
    """The class of this name, also from a file in the current folder. Raises UserError."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"cannot import {path}: {error}") from error


def new_folder(save_dir: str | None, kind: str) -> Path:
    """The folder for results. Raises UserError if there is something in it."""
    if not save_dir:
        now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        return CHAPTER / "results" / kind / now
    if any(Path(save_dir).glob("*")):
        raise UserError(f"--save-dir {save_dir}: is in use; choose a new folder")
    return Path(save_dir)
