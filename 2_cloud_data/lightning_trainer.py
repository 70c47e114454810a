"""The same training, with the command line that LightningCLI makes from the signatures."""

# uv run python -m lightning_trainer fit -c config/cli_config.yaml
# uv run python -m lightning_trainer fit -c config/two_processes.yaml
# uv run python -m lightning_trainer test --ckpt_path output/run_1/checkpoints/best.ckpt

from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from src.config import CHAPTER
from src.data.lightning_datamodule import FieldDataModule
from src.errors import UserError, one_line_errors
from src.model.lightning_module import AutoencoderModule, plain
from src.optim import make_optimizer
from src.tracking import new_run_folder

# Without this file there would be no Report and no StopAndSave; -c adds to it.
DEFAULT = {
    "default_config_files": [f"{CHAPTER}/config/cli_config.yaml"],
    "allow_abbrev": False,
}


class AutoencoderCLI(LightningCLI):
    """Adds the section optimizer, one seed for everything, and a folder for each run."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_function_arguments(
            make_optimizer, "optimizer", skip={"model", "total_steps"}
        )
        parser.link_arguments("optimizer", "model.optimizer", compute_fn=plain)
        # LightningCLI's seed_everything may be a bool; a seed is a number.
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def before_instantiate_classes(self) -> None:
        """Each run gets a folder of its own; a resumed training stays in its checkpoint's."""
        config = self.config[self.subcommand]
        if self.subcommand != "fit" and not config.ckpt_path:
            raise UserError(
                "--ckpt_path: name a checkpoint, or untrained weights are scored"
            )
        if self.subcommand == "fit" and config.ckpt_path:
            config.trainer.default_root_dir = str(
                Path(config.ckpt_path).resolve().parents[1]
            )
        elif folder := rank_zero_only(new_run_folder)(CHAPTER / "output"):
            config.trainer.default_root_dir = str(folder)


def main() -> None:
    """Read the command line and run the subcommand."""
    AutoencoderCLI(
        AutoencoderModule,
        FieldDataModule,
        auto_configure_optimizers=False,  # the module makes its optimizer
        save_config_kwargs={
            "overwrite": True
        },  # a resumed run writes its config.yaml again
        parser_kwargs={"allow_abbrev": False}
        | dict.fromkeys(LightningCLI.subcommands(), DEFAULT),
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
