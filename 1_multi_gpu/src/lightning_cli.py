"""LightningCLI for this chapter: chapter 0's sections, one-line errors, a checkpoint by default."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from src.config import CHAPTER, HelpFormatter
from src.config_errors import explain
from src.errors import UserError
from src.lightning_callbacks import Stopped, how_to_continue
from src.lightning_logger import RunLogger
from src.lightning_settings import check_settings, make_strategy
from src.optim import make_optimizer


class AutoencoderCLI(LightningCLI):
    """Reads the command line, builds module, data and Trainer, and runs the subcommand."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Chapter 0's section optimizer, and its one seed for everything."""
        parser.add_function_arguments(make_optimizer, "optimizer", skip={"model", "total_steps"})
        parser.link_arguments("optimizer", "model.optimizer", compute_fn=vars)
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
