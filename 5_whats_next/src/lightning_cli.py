"""LightningCLI with chapter 0's sections and one-line errors, and a checkpoint by default."""

import argparse
import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from src.callbacks import left_behind
from src.config import CHAPTER, HelpFormatter, TrainerSettings, check_numbers
from src.config_errors import explain
from src.errors import UserError
from src.lightning_callbacks import Stopped, how_to_continue
from src.lightning_checkpoint import readable
from src.lightning_logger import RunLogger
from src.lightning_precision import check_precision
from src.lightning_settings import check_devices, make_strategy, run_to_resume
from src.optim import make_optimizer
from src.resume import bring_back

CONTINUE = "-m lightning_trainer fit -c RUN/config.yaml --ckpt_path RUN/checkpoints/last.ckpt"
SUBCOMMANDS = ("fit", "validate", "test", "predict")


class AutoencoderCLI(LightningCLI):
    """Reads the command line, builds module, data and Trainer, and runs the subcommand.

    Without -c it reads config/cli_config.yaml. ``validate``, ``test`` and ``predict`` without
    --ckpt_path take the best checkpoint of the newest run.
    """

    exit_code = 0

    def __init__(
        self, module: type[LightningModule], data: type[LightningDataModule], description: str
    ) -> None:
        default = [str(CHAPTER / "config" / "cli_config.yaml")]
        shared = {
            "exit_on_error": False,
            "formatter_class": HelpFormatter,
            "allow_abbrev": False,  # a key that is cut short is a typing error
        }
        kwargs: dict[str, Any] = {
            name: {"default_config_files": default, **shared} for name in SUBCOMMANDS
        }
        try:
            super().__init__(
                module,
                data,
                save_config_callback=SaveConfig,
                save_config_kwargs={"overwrite": True},
                # In a log file every update of the bar is a new line.
                trainer_defaults={"enable_progress_bar": sys.stdout.isatty()},
                seed_everything_default=0,
                auto_configure_optimizers=False,
                parser_kwargs={"description": description, **shared, **kwargs},
            )
        except argparse.ArgumentError as error:
            named = [name for name in SUBCOMMANDS if name in sys.argv[1:2]]
            parser = self._subcommand_parsers[named[0]] if named else self.parser
            raise UserError(explain(str(error), parser)) from error

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Chapter 0's section optimizer, and its one seed for everything."""
        parser.add_function_arguments(make_optimizer, "optimizer", skip={"model", "total_steps"})
        parser.link_arguments("optimizer", "model.optimizer", compute_fn=plain)
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and fill in the checkpoint that was not named."""
        super().parse_arguments(parser, args)
        config = self.config[self.config.subcommand]
        check_numbers(with_defaults(config))
        logger = config.trainer.logger
        if not logger or not logger.get("class_path", "").endswith(RunLogger.__name__):
            return  # somebody else's logger has no runs to look for
        arguments = logger.init_args
        if self.config.subcommand == "fit":
            if config.ckpt_path:  # maybe an address in the cloud
                words = ["--ckpt_path", config.ckpt_path]
                words += ["--trainer.output_dir", arguments.output_dir]
                config.ckpt_path = bring_back(words, "--ckpt_path")[1]
            # Only a run's own checkpoint continues it, in its folder.
            folder, checkpoint = run_to_resume(
                config.ckpt_path, arguments.output_dir, "--ckpt_path"
            )
            arguments.folder = folder and str(folder)
            config.ckpt_path = checkpoint and str(checkpoint)
        elif not config.ckpt_path:
            config.ckpt_path = str(newest_checkpoint(CHAPTER / arguments.output_dir))

    def _parse_ckpt_path(self) -> None:
        """The model of a checkpoint that is scored is that checkpoint's.

        A training that goes on has to have the same settings; ``on_load_checkpoint`` compares them.
        """
        if self.config.subcommand != "fit":
            with readable(self.config[self.config.subcommand].ckpt_path):
                super()._parse_ckpt_path()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Lightning's Trainer, after a look at the devices."""
        config = self.config[self.subcommand]
        settings, devices = config.trainer, str(config.trainer.devices)
        check_precision(settings.precision, settings.accelerator, settings.strategy)
        if settings.strategy == "fsdp" and devices.isdigit():
            kwargs["strategy"] = make_strategy("fsdp", int(devices) * settings.num_nodes)
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ValueError, TypeError, ImportError) as error:
            raise UserError(f"trainer: {' '.join(str(error).split())}") from error
        check_devices(
            str(settings.accelerator),
            trainer.num_devices,
            trainer.num_nodes,
            config.data.batch_size,
        )
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        """Run it; after ``fit``, score the validation samples beside the baselines."""
        logger = self.trainer.logger
        try:
            super()._run_subcommand(subcommand)
            if subcommand == "fit":
                self.trainer.test(self.model, self.datamodule, verbose=False)
                self.exit_code = left_behind(self.trainer)
        except Stopped as stopped:
            self.exit_code = how_to_continue(CONTINUE, stopped) or left_behind(self.trainer)
        finally:
            if isinstance(logger, RunLogger):
                logger.close()


def with_defaults(config: Namespace) -> Namespace:
    """The sections of a configuration, with chapter 0's values where Lightning's may be null."""
    given = {name: value for name, value in vars(config.trainer).items() if value is not None}
    trainer = Namespace(**vars(TrainerSettings()) | given)
    return Namespace(
        model=config.model, data=config.data, optimizer=config.optimizer, trainer=trainer
    )


def plain(settings: Namespace) -> dict[str, Any]:
    """Settings as a dictionary that YAML can hold."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(settings).items()}


class SaveConfig(SaveConfigCallback):
    """Writes config.yaml to the folder of a new run; a run that goes on keeps its own."""

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        logger = trainer.logger
        if stage == "fit" and (not isinstance(logger, RunLogger) or logger.is_new):
            super().setup(trainer, pl_module, stage)


def newest_checkpoint(output_dir: Path) -> Path:
    """The best checkpoint of the newest run. Raises UserError if there is none."""
    found = sorted(output_dir.glob("run_*/checkpoints/best.ckpt"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise UserError(
            f"--ckpt_path: there is no run with a checkpoint in {output_dir}; "
            "name a checkpoint, or train first"
        )
    return found[-1]
