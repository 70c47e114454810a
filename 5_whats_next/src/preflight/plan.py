"""What the checks of a preflight share: the training that is planned, and what they say of it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from jsonargparse import Namespace

from src.callbacks import storage_path
from src.data.cloud_errors import CloudError
from src.data.pytorch_dataset import FieldDataset
from src.model.pytorch_model import MaskedAutoencoder

State = Literal["ok", "warning", "not ok", "not checked"]
Result = TypeVar("Result")
HANGING: list[threading.Thread] = []  # threads that wait for an answer that does not come


class Finding(NamedTuple):
    """What a check says."""

    state: State
    found: str
    todo: str = ""


@dataclass
class Plan:
    """A training that is planned, and what the checks have learned about it so far.

    Args:
        config: the sections of lightning_train.py.
        steps: how many steps are timed.
        price_per_hour: of all machines together, in any currency.
        limit: seconds that a check which asks the network may take.
    """

    config: Namespace
    steps: int = 10
    price_per_hour: float | None = None
    limit: float = 5.0
    train_set: FieldDataset | None = field(default=None, init=False)
    val_set: FieldDataset | None = field(default=None, init=False)
    model: MaskedAutoencoder | None = field(default=None, init=False)
    step_seconds: float = field(default=0.0, init=False)
    peak_bytes: int = field(default=0, init=False)  # of the timed steps, on one device
    upload_rate: float = field(default=0.0, init=False)  # bytes in a second

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting of the trainer."""
        return getattr(self.config.trainer, name, default)

    @property
    def uploads_to(self) -> str:
        """Where checkpoints go; empty if nowhere."""
        return storage_path(self.setting("cloud_storage_path"))

    @property
    def of_dataset(self) -> dict[str, Any]:
        """The settings of the dataset."""
        return dict(getattr(self.config.data.dataset, "keywords", {}))

    @property
    def world_size(self) -> int:
        """Processes of the training, each with one device."""
        return self.config.trainer.devices * self.config.trainer.num_nodes

    @property
    def device_batch(self) -> int:
        """Samples of a step on one device."""
        return max(1, self.config.data.batch_size // max(1, self.world_size))

    @property
    def sets(self) -> tuple[FieldDataset, FieldDataset]:
        """Training and validation samples, once they are open."""
        assert self.train_set is not None
        assert self.val_set is not None
        return self.train_set, self.val_set

    @property
    def num_steps(self) -> tuple[int, int]:
        """Steps of an epoch, and of the whole training."""
        epoch = len(self.sets[0]) // self.config.data.batch_size
        total, most = epoch * self.config.trainer.max_epochs, self.config.trainer.max_steps
        return epoch, total if most == -1 else min(total, most)

    @property
    def num_parameters(self) -> int:
        assert self.model is not None
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def checkpoint_bytes(self) -> int:
        """Float32 weights, and for each of them the two running averages of AdamW."""
        return self.num_parameters * 4 * (1 + 2)


def within(seconds: float, function: Callable[[], Result]) -> Result:
    """The function's result. Raises CloudError if it takes longer.

    A thread cannot be ended from outside: one that hangs is left alone, until the process ends.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        done.wait(seconds)
    except KeyboardInterrupt:
        done.wait(seconds)  # what it has begun it cleans up
        raise
    if not done.is_set():
        HANGING.append(thread)
        raise CloudError(f"no answer within {seconds:g} s")
    if errors:
        raise errors[0]
    return results[0]


def size(num_bytes: float) -> str:
    """Bytes as people write them."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"
