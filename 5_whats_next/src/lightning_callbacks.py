"""What happens beside the training: the printed check, pictures, scores, Ctrl-C."""

import atexit
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.utilities import rank_zero_only

from src.device import describe_device
from src.interrupt import GracefulInterrupt
from src.lightning_logger import RunLogger
from src.lightning_ranks import is_rank_zero, launch_id, sum_over_ranks, wait_for
from src.model.lightning_module import AutoencoderModule
from src.report import draw, publish


class Stopped(Exception):  # noqa: N818  it is no error
    """The training ended early, after a step that is saved."""

    def __init__(self, step: int, folder: str, signal_number: int = 0) -> None:
        super().__init__(f"stopped after step {step}")
        self.step, self.folder, self.signal_number = step, folder, signal_number


def how_to_continue(command: str, stopped: Stopped) -> int:
    """Print the command that goes on, with the folder in place of RUN; returns the exit code."""
    if not is_rank_zero():
        return 0  # rank 0 alone says how the run ended
    print(f"stopped after step {stopped.step}; continue with:")
    print(f"  uv run python {command.replace('RUN', os.path.relpath(stopped.folder))}")
    return 128 + stopped.signal_number if stopped.signal_number else 0


class Report(Callback):
    """Prints what is running where; draws pictures; at the end writes the scores.

    Args:
        picture_every_n_epochs: epochs between two pictures; 0 means at the end only.
        resolved: the configuration, for config.yaml in the run's folder; empty writes none.
    """

    def __init__(self, picture_every_n_epochs: int = 1, resolved: str = "") -> None:
        self.every, self.resolved = picture_every_n_epochs, resolved
        self.run_id = ""  # of wandb
        self.row: dict[str, float] = {}  # of metrics.csv, at the step of the checkpoint

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.run_id = state_dict["run_id"]

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the step's row as well: Lightning writes it after the checkpoint."""
        names = ("train_loss", "lr", "samples_per_second")
        metrics = trainer.callback_metrics
        row = {name: float(metrics[name]) for name in names if name in metrics}
        checkpoint["row"] = row | {"epoch": trainer.current_epoch}

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.row = checkpoint.get("row", {})

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin(trainer, pl_module)
        self.start_epoch()

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin(trainer, pl_module)

    @rank_zero_only
    def begin(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the run's folder and say what is about to run, once."""
        logger, data = trainer.logger, module_of(pl_module).data
        if not isinstance(logger, RunLogger) or logger.tracker is not None:
            return
        config = dict(pl_module.hparams) | {"lightning": L.__version__}
        logger.open(data.val_set.variables, config, trainer.global_step, self.run_id)
        if logger.tracker is not None:
            self.run_id = logger.tracker.run.id
        every: int = vars(trainer)["log_every_n_steps"]  # public, but Trainer does not declare it
        if self.row and trainer.global_step % every == 0:
            logger.add_missing(trainer.global_step, self.row)
        if logger.is_new:
            folder = Path(logger.save_dir)
            if self.resolved:
                (folder / "config.yaml").write_text(self.resolved)
            if launch := launch_id():
                (folder / "launch_id").write_text(launch)  # to find the run after a restart
        describe(trainer, module_of(pl_module))
        print(f"output    {os.path.relpath(logger.save_dir)}", flush=True)

    def start_epoch(self) -> None:
        self.started, self.samples = time.perf_counter(), 0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start_epoch()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object
    ) -> None:
        self.samples += module_of(pl_module).data.batch_size
        speed = self.samples / (time.perf_counter() - self.started)
        pl_module.log("samples_per_second", speed, prog_bar=True, rank_zero_only=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A line and the pictures of the epoch; in the meantime the other ranks wait."""
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if not fitting or not isinstance(trainer.logger, RunLogger):
            return
        module = module_of(pl_module)
        names = ["val_loss", *(f"rmse_{name}" for name in module.data.val_set.variables)]
        scores = ", ".join(f"{name} {trainer.callback_metrics[name]:.4f}" for name in names)
        epoch = trainer.current_epoch + 1
        module.print(f"epoch {epoch} of {trainer.max_epochs}: {scores}")
        if self.every and epoch % self.every == 0 and epoch != trainer.max_epochs:
            model = module.whole_model()
            if (tracker := trainer.logger.tracker) is not None:
                draw(model, module.data.val_set, module.device, tracker, trainer.global_step)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The scores beside the baselines, printed, written and drawn."""
        if not isinstance(trainer.logger, RunLogger):
            return
        module = module_of(pl_module)
        model, scores, dataset = module.whole_model(), module.scores, module.data.val_set
        if (tracker := trainer.logger.tracker) is not None:
            publish(scores, model, dataset, module.device, tracker, trainer.global_step)
            where = os.path.relpath(tracker.folder)
            print(f"look at {where}: curves.png, reconstructions.png, metrics.csv, summary.json")


def module_of(module: L.LightningModule) -> AutoencoderModule:
    """The module, for the type checker."""
    assert isinstance(module, AutoencoderModule)
    return module


def describe(trainer: L.Trainer, module: AutoencoderModule) -> None:
    """Print what runs where. Look at it: a run on the wrong hardware works too, only slower."""
    data, world_size = module.data, trainer.world_size
    steps = data.steps_per_epoch * (trainer.max_epochs or 1)
    shape = data.train_set.sample_shape
    print(f"device    {describe_device(module.device)}")
    print(
        f"ranks     {world_size} ({trainer.num_devices} on each of {trainer.num_nodes} nodes), "
        f"accelerator {type(trainer.accelerator).__name__}, "
        f"strategy {type(trainer.strategy).__name__}"
    )
    print(
        f"data      {len(data.train_set)} training, {len(data.val_set)} validation samples "
        f"of shape {shape}"
    )
    print(f"model     {sum(p.numel() for p in module.parameters()):,} parameters")
    if trainer.state.fn != "fit":
        return
    print(
        f"training  steps {trainer.global_step} to {steps}, {data.batch_size} samples each: "
        f"{data.batch_size // world_size} on each rank"
    )


class StopAndSave(Callback):
    """Ctrl-C and SIGTERM end the run after the step, with a checkpoint, and so does ``max_steps``.

    Ranks get the signal at different moments. They ask each other after every step, so that all of
    them stop after the same one.
    """

    def __init__(self) -> None:
        self.max_steps, self.interrupt, self.stopping = -1, GracefulInterrupt(), False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take max_steps over: the Trainer would count the part of an epoch as a whole one."""
        if isinstance(launcher := trainer.strategy.launcher, _SubprocessScriptLauncher):
            atexit.register(
                wait_for, launcher.procs
            )  # Lightning leaves before the ranks it started
        if stage == "fit" and trainer.max_steps != -1:
            self.max_steps, trainer.fit_loop.epoch_loop.max_steps = trainer.max_steps, -1

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.interrupt.__enter__()  # here, because Lightning sets its own handlers before

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object
    ) -> None:
        self.stopping = self.is_time(trainer)
        inside = trainer.global_step % module_of(pl_module).data.steps_per_epoch != 0
        if self.stopping and inside:
            trainer.save_checkpoint(Path(trainer.log_dir or ".") / "checkpoints" / "last.ckpt")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The signal may have come during the validation."""
        self.stopping = self.stopping or self.is_time(trainer)

    def is_time(self, trainer: L.Trainer) -> bool:
        """Whether any rank has to stop; all ranks have to ask together."""
        told = bool(self.interrupt) or trainer.global_step == self.max_steps
        (count,) = sum_over_ranks(torch.tensor(int(told)))
        return bool(count)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object
    ) -> None:
        """End the run: now the last step's metrics and an epoch's checkpoints are written."""
        if self.stopping:
            number = self.interrupt.signal_number
            if not number and trainer.global_step != self.max_steps:
                number = signal.SIGTERM  # another rank has got a signal, and this one not yet
            raise Stopped(trainer.global_step, trainer.log_dir or ".", number)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.restore()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self.restore()
        launcher = trainer.strategy.launcher
        if isinstance(launcher, _SubprocessScriptLauncher) and not isinstance(exception, Stopped):
            launcher.kill(signal.SIGTERM)  # the other ranks would wait for this one

    def restore(self) -> None:
        if hasattr(self.interrupt, "previous"):
            self.interrupt.__exit__()
