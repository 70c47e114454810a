"""The same training, with the command line that LightningCLI makes from the signatures.

uv run python -m lightning_trainer fit -c config/cli_config.yaml
uv run python -m lightning_trainer test -c config/cli_config.yaml --ckpt_path CHECKPOINT

With --ckpt_path, for example output/run_1/checkpoints/last.ckpt, fit goes on in that run's folder.
Every argument of lightning.Trainer can be set. Some of them break what this book proves:
accumulate_grad_batches, limit_train_batches and max_steps change which samples a step trains on,
and a list of callbacks replaces ours.
"""

from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only

from src.data.lightning_datamodule import FieldDataModule
from src.model.lightning_module import AutoencoderModule
from src.run.config import CHAPTER
from src.run.errors import one_line_errors
from src.run.optim import make_optimizer
from src.run.tracking import new_run_folder


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
        """A training goes on in its checkpoint's folder; all else gets a new one."""
        config = self.config[self.subcommand]
        if config.ckpt_path and self.subcommand == "fit":
            folder = Path(config.ckpt_path).resolve().parents[1]
            config.trainer.default_root_dir = str(folder)
        elif rank_zero_only.rank == 0:
            folder = new_run_folder(CHAPTER / "output").resolve()
            config.trainer.default_root_dir = str(folder)


def main() -> None:
    """Read the command line and run its subcommand."""
    AutoencoderCLI(
        AutoencoderModule,
        FieldDataModule,
        auto_configure_optimizers=False,  # the module makes its optimizer
        save_config_kwargs={"overwrite": True},  # a resumed run writes it again
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
