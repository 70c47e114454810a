"""lightning_train.py, stopped at a chosen moment until a signal comes; see test_preemption.py.

    python preempted_run.py MOMENT FOLDER [settings of lightning_train.py]

Each rank writes its process id to FOLDER/RANK when it is there.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHAPTER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHAPTER))
MOMENT, FOLDER = os.environ["MOMENT"], Path(os.environ["MOMENT_FOLDER"])
STEP = 6


def reached() -> None:
    """Say so, once, and wait for the signal, which this process or another one gets."""
    from src.patient_interrupt import INTERRUPT

    mine = FOLDER / os.environ.get("LOCAL_RANK", "0")
    if not mine.exists():
        note(mine)
        end = time.monotonic() + 60
        while not INTERRUPT.signal_number and time.monotonic() < end:
            time.sleep(0.01)


def note(path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(os.getpid()))
    temporary.replace(path)


def before(owner: type, name: str, condition: Callable[..., bool]) -> None:
    """Wait for the signal before a method runs for the first time under a condition."""
    original = getattr(owner, name)

    def call(self: Any, *arguments: Any, **settings: Any) -> Any:
        if condition(self, *arguments):
            reached()
        return original(self, *arguments, **settings)

    setattr(owner, name, call)


def never_arrives(dataset: Any, index: int) -> None:
    """The second read of a sample of step 6: nothing comes any more."""
    from src.data.sampler import epoch_order

    if len(dataset) != 34 or index != epoch_order(34, 0, 1)[8 * (STEP - 4 + 1) - 1]:
        return
    if (FOLDER / "once").exists():  # in epoch 0
        note(FOLDER / f"reader-{os.getpid()}")
        time.sleep(3600)
    note(FOLDER / "once")


def prepare() -> None:
    """Put the moment into the classes."""
    from src.data.pytorch_dataset import DummyDataset
    from src.durable_checkpoint import DurableCheckpointIO
    from src.model.lightning_module import AutoencoderModule

    if MOMENT == "training":
        before(AutoencoderModule, "training_step", lambda module, *_: module.global_step == STEP)
    elif MOMENT in ("validation", "last validation"):
        step = 8 if MOMENT == "validation" else 12
        before(AutoencoderModule, "validation_step", lambda module, *_: module.global_step == step)
    elif MOMENT == "saving":
        is_time = lambda io, state, *_: state["global_step"] == STEP  # noqa: E731
        before(DurableCheckpointIO, "save_checkpoint", is_time)
    elif MOMENT == "waiting":
        original = DummyDataset.__getitem__

        def read(dataset: Any, index: int) -> Any:
            never_arrives(dataset, index)
            return original(dataset, index)

        DummyDataset.__getitem__ = read  # type: ignore[method-assign]


prepare()  # in workers as well, which import this file

if __name__ == "__main__":
    import lightning_train
    from src.lightning_errors import one_line_errors
    from src.preemption import leave

    with one_line_errors():
        leave(lightning_train.main())
