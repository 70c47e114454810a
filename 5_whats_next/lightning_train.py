"""Train a masked autoencoder with Lightning, on one device or on many.

  uv run python lightning_train.py                             as pytorch_train.py, to the bit
  uv run python lightning_train.py -c config/two_processes.yaml      DDP on two CPU processes
  uv run python lightning_train.py --trainer.devices 8         DDP on eight GPUs
  uv run python lightning_train.py --resume output/run_1       continue where a run stopped
  uv run python lightning_train.py --resume s3://embedded/checkpoints/RUN    the same from the cloud
  uv run python lightning_train.py --trainer.run_name NAME     begin or continue, as the case may be

Each run writes its metrics, checkpoints, configuration and pictures to a folder output/run_N.
"""

import os
import sys

import lightning as L
from src.callbacks import left_behind
from src.config import parse_config
from src.data.lightning_datamodule import FieldDataModule
from src.durable_checkpoint import DurableCheckpointIO
from src.environment import load_environment
from src.lightning_callbacks import Stopped, how_to_continue
from src.lightning_errors import one_line_errors
from src.lightning_logger import RunLogger
from src.lightning_precision import check_precision
from src.lightning_settings import (
    LightningSettings,
    check_devices,
    make_callbacks,
    make_strategy,
    quiet,
)
from src.model.lightning_module import AutoencoderModule
from src.preemption import leave
from src.resume import bring_back, named_logger, where_to_begin
from src.secret_arguments import refuse_secrets


def main() -> int:
    """Read the settings and train. Returns the exit code."""
    load_environment()
    refuse_secrets(sys.argv[1:])
    arguments = bring_back(sys.argv[1:])
    config, resolved = parse_config(__doc__, arguments, settings=LightningSettings)
    settings, seed = config.trainer, config.seed_everything
    quiet()
    again = f"{os.path.relpath(__file__)} --resume RUN"
    strategy = make_strategy(settings.strategy, settings.devices * settings.num_nodes)
    check_devices(
        settings.accelerator, settings.devices, settings.num_nodes, config.data.batch_size
    )
    check_precision(settings.precision, settings.accelerator, settings.strategy)
    folder, checkpoint = where_to_begin(config.resume, settings)

    # The same seed on all ranks, for the same initial weights.
    L.seed_everything(seed, workers=True, verbose=False)
    data = FieldDataModule(**vars(config.data), seed=seed)
    module = AutoencoderModule(
        optimizer=vars(config.optimizer),
        seed=seed,
        micro_batches=settings.micro_batches,
        **vars(config.model),
    )
    with named_logger(RunLogger(settings.output_dir, settings.wandb, folder), folder) as logger:
        trainer = L.Trainer(
            accelerator=settings.accelerator,
            devices=settings.devices,
            num_nodes=settings.num_nodes,
            strategy=strategy,
            precision=settings.precision,
            max_epochs=settings.max_epochs,
            max_steps=settings.max_steps,
            gradient_clip_val=settings.gradient_clip_val,
            log_every_n_steps=settings.log_every_n_steps,
            deterministic="warn" if settings.deterministic else False,
            use_distributed_sampler=False,  # ours starts inside an epoch, and counts global batches
            logger=logger,
            callbacks=make_callbacks(settings, resolved),
            plugins=[DurableCheckpointIO()],
            enable_progress_bar=sys.stdout.isatty(),  # in a log file every update is a new line
        )
        try:
            trainer.fit(module, data, ckpt_path=checkpoint)
        except Stopped as stopped:
            return how_to_continue(again, stopped) or left_behind(trainer)
        trainer.test(module, data, verbose=False)
    return left_behind(trainer)


if __name__ == "__main__":
    with one_line_errors():
        leave(main())
