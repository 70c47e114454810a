"""Chapter 0's metrics.csv and wandb as a Lightning logger, on rank 0 only."""

import shutil
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from src.config import CHAPTER
from src.lightning_ranks import is_rank_zero
from src.tracking import Tracker, WandbMode, new_run_folder, wandb_mode


class RunLogger(Logger):
    """Writes the metrics of a run to a folder of its own.

    Lightning's CSVLogger deletes the rows of the first half when a run is resumed; this one keeps
    them. ``--trainer.logger`` takes any other logger as well, but then the run has no folder for
    pictures.

    Args:
        output_dir: folder for the runs; a relative one lies in the chapter's folder.
        wandb: where metrics go; null follows the variable WANDB_MODE, and else stays offline.
        folder: of the run to continue; null starts a new one.
    """

    def __init__(
        self,
        output_dir: str = "output",
        wandb: WandbMode | None = None,
        folder: Path | None = None,
    ) -> None:
        super().__init__()
        self.output_dir, self.mode, self.folder = CHAPTER / output_dir, wandb_mode(wandb), folder
        self.tracker: Tracker | None = None
        self.is_new = folder is None

    # Lightning puts checkpoints into SAVE_DIR/NAME/VERSION/checkpoints, and asks on every rank.
    name = version = ""

    @property
    def save_dir(self) -> str:
        """The run's folder. Rank 0 makes it, and Lightning broadcasts its answer."""
        if self.folder is None and is_rank_zero():
            self.folder = new_run_folder(self.output_dir)
        return str(self.folder or "")

    @rank_zero_only
    def open(
        self, variables: Sequence[str], config: Mapping[str, Any], step: int, run_id: str
    ) -> None:
        """Open the files; rows after ``step`` are dropped, they come again."""
        if self.tracker is None:
            folder = Path(self.save_dir)
            self.tracker = Tracker(folder, variables, config, self.mode, step, run_id)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write a row. Lightning counts steps from 0, and chapter 0 the steps that are done."""
        if self.tracker is not None and step is not None:
            known = set(self.tracker.writer.fieldnames) - {"step", "epoch"}
            row = {name: value for name, value in metrics.items() if name in known}
            if row:
                self.tracker.log(step + 1, int(metrics.get("epoch", 0)), row)

    @rank_zero_only
    def add_missing(self, step: int, row: Mapping[str, float]) -> None:
        """Write the row of a checkpoint's step, if a kill came between the two."""
        if self.tracker is not None and not any(
            int(found["step"]) == step and found["train_loss"]
            for found in self.tracker.read_rows(step)
        ):
            self.log_metrics(row, step - 1)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kw: Any) -> None:
        """``open`` gets them all at once."""

    def close(self, failed: bool = False) -> None:
        """Close the files. Not in ``finalize``: Lightning calls that after fit, before test."""
        begun = self.tracker is not None
        if self.tracker is not None:
            self.tracker.__exit__(RuntimeError if failed else None)
            self.tracker = None
        if not begun and self.is_new and self.folder and not holds_results(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "RunLogger":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(failed=kind is not None)


def holds_results(folder: Path) -> bool:
    """Whether there is anything but the configuration of a run that did not begin."""
    return any(path.is_file() and path.name != "config.yaml" for path in folder.rglob("*"))
