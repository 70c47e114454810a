"""One training of a study: short, in this process, watched from outside."""

import signal
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from src.config import parse_config
from src.data.lightning_datamodule import FieldDataModule
from src.data.pytorch_dataset import FieldDataset, Split
from src.errors import UserError
from src.interrupt import GracefulInterrupt
from src.lightning_ranks import SharedError
from src.lightning_settings import LightningSettings
from src.model.pytorch_model import MaskedAutoencoder
from src.study_space import StudySettings, as_arguments
from src.study_task import SharedTask, StudyModule, shared_task

Datasets = Callable[[Split], FieldDataset]


class Diverged(Exception):  # noqa: N818  a result of a trial, not an error of the program
    """The loss or the gradient is not finite any more."""


class Interrupted(Exception):  # noqa: N818  it is no error
    """Ctrl-C or SIGTERM, noticed between two steps."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"signal {signal_number}")
        self.signal_number = signal_number


def stop_if_told(interrupt: GracefulInterrupt) -> None:
    """Raise Interrupted if a signal has come."""
    if interrupt:
        raise Interrupted(interrupt.signal_number)


@dataclass
class Training:
    """What a training has given so far: an RMSE per evaluation, the last one on its own task."""

    curve: list[float] = field(default_factory=list)
    own: float = float("nan")
    seconds: float = 0.0  # without the evaluations


class Watch(Callback):
    """Notes the scores, tells them at once, and ends the training on Ctrl-C.

    Args:
        training: where the notes go.
        scored: called after each evaluation; what it raises ends the training.
        stepped: called with the number of samples of each step.
        interrupt: tells whether a signal has come.
    """

    def __init__(
        self,
        training: Training,
        scored: Callable[[], None],
        stepped: Callable[[int], object],
        interrupt: GracefulInterrupt,
    ) -> None:
        self.training, self.scored, self.stepped = training, scored, stepped
        self.interrupt, self.since = interrupt, 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Lightning has set a handler of its own; it takes it back at the end.
        signal.signal(signal.SIGTERM, self.interrupt.handle)
        self.since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object
    ) -> None:
        self.stepped(trained(pl_module).data.batch_size)
        stop_if_told(self.interrupt)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.training.seconds += time.perf_counter() - self.since

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module = trained(pl_module)
        self.training.curve.append(module.shared_score())
        self.training.own = module.own_score()
        stop_if_told(self.interrupt)
        self.scored()
        self.since = time.perf_counter()


def trained(module: L.LightningModule) -> StudyModule:
    """The module, for the type checker."""
    assert isinstance(module, StudyModule)
    return module


def read_config(words: Sequence[str], params: Mapping[str, Any]) -> Namespace:
    """The train script's configuration with a trial's values."""
    arguments = [*words, *as_arguments(params)]
    return parse_config("", arguments, settings=LightningSettings)[0]


def check_trial(config: Namespace, settings: StudySettings, data: Datasets) -> None:
    """Raise UserError for a configuration that cannot be trained as the study wants it."""
    size, train_set = config.data.batch_size, data("train")
    if settings.between % size:
        raise UserError(
            f"data.batch_size: {size} does not divide the {settings.between} samples from one "
            "evaluation to the next; allowed: divisors of samples / evaluations"
        )
    if size > len(train_set):
        raise UserError(
            f"data.batch_size: {size} does not fit the {len(train_set)} training samples"
        )
    MaskedAutoencoder(sample_shape=train_set.sample_shape, **vars(config.model))


def task_of(configs: Sequence[Namespace], data: Datasets, mask_ratio: float) -> SharedTask:
    """The evaluation that models of all these configurations share."""
    _, *window = data("train").sample_shape
    sizes = [config.model.patch_size for config in configs]
    return shared_task(sizes, (window[0], window[1], window[2]), mask_ratio)


def train(
    config: Namespace,
    data: Datasets,
    task: SharedTask,
    settings: StudySettings,
    seed: int,
    watch: Watch,
) -> None:
    """Train once, watched. Raises Diverged, Interrupted, and what ``watch.scored`` raises."""
    L.seed_everything(seed, workers=True, verbose=False)
    loaders = FieldDataModule(**(vars(config.data) | {"dataset": data}), seed=seed)
    module = StudyModule(
        task,
        optimizer=vars(config.optimizer),
        seed=seed,
        micro_batches=config.trainer.micro_batches,
        **vars(config.model),
    )
    size = config.data.batch_size
    trainer = L.Trainer(
        accelerator=config.trainer.accelerator,
        devices=1,
        max_epochs=-1,  # the samples end the training
        max_steps=settings.samples // size,
        val_check_interval=settings.between // size,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        gradient_clip_val=config.trainer.gradient_clip_val,
        deterministic="warn" if config.trainer.deterministic else False,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=[watch],
    )
    try:
        trainer.fit(module, loaders)
    except SharedError as error:
        # The module's own guards; anything else was checked before.
        if "the norm of the gradient is" in str(error) or "validation gave" in str(error):
            raise Diverged(str(error)) from error
        raise
