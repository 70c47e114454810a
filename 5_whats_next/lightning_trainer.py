"""The same training from the command line that LightningCLI makes of the code.

uv run python -m lightning_trainer fit -c config/cli_config.yaml
uv run python -m lightning_trainer fit --trainer.devices 8 --trainer.strategy ddp
uv run python -m lightning_trainer test --ckpt_path output/run_1/checkpoints/best.ckpt
uv run python -m lightning_trainer predict
uv run python -m lightning_trainer fit --ckpt_path output/run_1/checkpoints/last.ckpt
uv run python -m lightning_trainer fit --ckpt_path s3://embedded/checkpoints/RUN
"""

import sys

from src.data.lightning_datamodule import FieldDataModule
from src.environment import load_environment
from src.lightning_cli import AutoencoderCLI
from src.lightning_errors import one_line_errors
from src.lightning_settings import quiet
from src.model.lightning_module import AutoencoderModule
from src.preemption import leave
from src.secret_arguments import refuse_secrets


def main() -> int:
    """Parse the command line and run the subcommand. Returns the exit code."""
    load_environment()
    refuse_secrets(sys.argv[1:])
    quiet()
    cli = AutoencoderCLI(AutoencoderModule, FieldDataModule, description=__doc__)
    return cli.exit_code


if __name__ == "__main__":
    with one_line_errors():
        leave(main())
