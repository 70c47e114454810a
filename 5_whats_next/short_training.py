"""Short trainings that differ in one thing, for comparisons: the same data, masks, weights.

The loop is that of AutoencoderModule, without what surrounds it; a test holds the two together.

Shapes: B batch, V variables, T times, H latitudes, W longitudes.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")  # draws into files: no window, no display needed

import torch
from jsonargparse import Namespace
from src.config import CHAPTER, parse_config
from src.data.loaders import Loaders
from src.errors import UserError
from src.evaluation import validate
from src.lightning_settings import LightningSettings
from src.model.pytorch_model import MaskedAutoencoder
from src.optim import make_optimizer
from src.tracking import new_run_folder
from torch import Tensor
from torch.amp import GradScaler

ALSO = ("-c", "--config", "--seed_everything", "--data", "--model", "--optimizer", "--trainer")
DTYPES = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class ShortTraining:
    """A model, its optimiser and its schedule, and one step of them.

    Args:
        config: the sections model, optimizer and trainer.
        loaders: the data.
        device: to compute on.
        total_steps: length of the schedule.
        seed: of the weights and the masks.
        precision: 32-true, bf16-mixed or 16-mixed.
        optimizer: settings that replace those of the config.
    """

    def __init__(
        self,
        config: Namespace,
        loaders: Loaders,
        device: torch.device,
        total_steps: int,
        seed: int = 0,
        precision: str = "32-true",
        **optimizer: Any,
    ) -> None:
        torch.manual_seed(seed)
        shape = loaders.train_set.sample_shape
        self.model = MaskedAutoencoder(shape, seed=seed, **vars(config.model)).to(device)
        settings = vars(config.optimizer) | optimizer
        self.optimizer, self.scheduler = make_optimizer(self.model, total_steps, **settings)
        self.loaders, self.device, self.dtype = loaders, device, DTYPES[precision]
        self.scaler = GradScaler(device.type, enabled=precision == "16-mixed")
        self.limit = config.trainer.gradient_clip_val
        self.left_out = 0  # steps with an infinite gradient
        self.losses: list[Tensor] = []
        self.rates: list[float] = []

    def autocast(self) -> AbstractContextManager[Any]:
        """Inside, matrix products are computed in this training's precision."""
        dtype, enabled = self.dtype or torch.bfloat16, self.dtype is not None
        # Without the cache, which pays where a weight is used twice, and as Lightning has it.
        return torch.autocast(self.device.type, dtype, enabled=enabled, cache_enabled=False)

    def forward(self, x: Tensor, index: Tensor, epoch: int) -> Tensor:
        """The loss () of samples ``x`` (B, V, T, H, W) with numbers ``index`` (B,)."""
        with self.autocast():
            output = self.model(x, index, epoch)
        return output.squared_error / output.valid_count.clamp(min=1)

    def step(self, x: Tensor, index: Tensor, epoch: int) -> None:
        """Train on one batch; the loss stays on the device."""
        loss = self.forward(x, index, epoch)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)  # else the gradients would be clipped with the scale
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)
        before = self.scaler.get_scale() if self.scaler.is_enabled() else 0.0
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.is_enabled():
            self.left_out += self.scaler.get_scale() < before
        self.losses.append(loss.detach())
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.scheduler.step()

    def rmse(self) -> float:
        """Root mean squared error of the first variable over the validation samples."""
        with self.autocast():
            scores = validate(self.model, self.loaders.val, self.device)
        return scores[f"rmse_{self.loaders.val_set.variables[0]}"]

    def curve(self) -> list[float]:
        """The loss of each step."""
        return torch.stack(self.losses).tolist()


def batches(loaders: Loaders, device: torch.device) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Samples (B, V, T, H, W), their numbers (B,) and the epoch, without end."""
    epoch = 0
    while True:
        loaders.sampler.set_epoch(epoch, start=0)
        for x, index in loaders.train:
            yield x.to(device), index.to(device), epoch
        epoch += 1


class Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the line breaks of the description, and shows the defaults."""


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser for a comparison's own options."""
    return argparse.ArgumentParser(
        description=f"{description}\nAll other arguments override keys of config/config.yaml, such "
        "as --model.depth 4;\n-c FILE reads another file as well.",
        formatter_class=Formatter,
        allow_abbrev=False,
        exit_on_error=False,
    )


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, Namespace]:
    """The options and the configuration. Raises UserError with one line.

    The ocean comes from memory, and not from a server: reading is not what is compared.
    """
    try:
        chosen, overrides = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(str(error).removeprefix("argument ")) from error
    given = [word.partition("=")[0] for word in overrides if word.startswith("-")]
    if stray := [word for word in given if "." not in word and word not in ALSO]:
        names = ", ".join(action.option_strings[-1] for action in parser._actions)
        raise UserError(f"{stray[0]} is no option; allowed: {names}, -c, and --SECTION.KEY")
    for name, value in vars(chosen).items():
        # All numbers here are counts or bounds.
        if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option}: {value} is too small; allowed: above 0")
    settings = ["--data.dataset=OceanDataset", *overrides]
    config, _ = parse_config(parser.description or "", settings, settings=LightningSettings)
    return chosen, config


def results_folder(kind: str) -> Path:
    """A new folder output/KIND/run_N."""
    folder = new_run_folder(CHAPTER / "output" / kind)
    (folder / "checkpoints").rmdir()  # a comparison keeps none
    return folder
