"""Where a run leaves its results: a folder with config.yaml and metrics.csv, and wandb."""

import contextlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

# What wandb does: keep its files here, send them to its server, or nothing.
WandbMode = Literal["offline", "online", "disabled"]


def new_run_folder(output_dir: Path) -> Path:
    """Create ``output_dir/run_N`` with the next free number; two runs never share a folder."""
    # Not inside the loop, which takes an error for a number that is in use.
    output_dir.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = output_dir / f"run_{number}"
        # mkdir instead of a look first: another run may start at the same moment.
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            (folder / "checkpoints").mkdir()
            break
    return folder


class Tracker:
    """Writes ``config.yaml``, and metrics to ``metrics.csv`` and wandb.

    Args:
        folder: the run's.
        mode: what wandb does; None follows the variable WANDB_MODE, and else stays offline.
        settings: the run's configuration, as YAML.
        rows: of metrics.csv so far. They are part of a checkpoint, so a resumed run goes on with
            those up to its step: later ones come again.
        run_id: the wandb run to go on with; empty for a new one.
    """

    def __init__(
        self,
        folder: Path,
        mode: WandbMode | None,
        settings: str,
        rows: list[dict[str, Any]],
        run_id: str,
    ) -> None:
        if settings:  # LightningCLI writes its own
            (folder / "config.yaml").write_text(settings)
        self.last = folder / "checkpoints/last.ckpt"
        self.best = folder / "checkpoints/best.ckpt"
        self.path = folder / "metrics.csv"
        self.rows = rows
        self.write_all_rows()

        # Imported here: a run's first line need not wait for it, and other ranks do not need it.
        import wandb

        os.environ.setdefault("WANDB_MODE", "offline")  # needs no account
        self.run = wandb.init(
            project="training-at-larger-scale",
            name=folder.name,
            id=run_id or None,
            resume="allow",
            dir=folder,
            config=yaml.safe_load(settings),
            mode=mode,
            settings=wandb.Settings(silent=True),
        )

    def log(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Log numbers after an optimiser step."""
        row = {"step": step, "epoch": epoch, **metrics}
        self.rows.append(row)
        if row.keys() <= set(self.columns):
            table = pd.DataFrame([row], columns=self.columns)
            table.to_csv(self.path, mode="a", header=False, index=False)
        else:  # the first row, and the first validation
            self.write_all_rows()
        # A cluster may send SIGTERM to all processes of a job, and wandb's own one ends at once
        # (https://github.com/wandb/wandb/issues/9963). The training goes on to its checkpoint.
        with contextlib.suppress(ConnectionError):
            self.run.log(row, step=step)

    def write_all_rows(self) -> None:
        """Write the whole file, with the columns of all rows."""
        table = pd.DataFrame(self.rows)
        self.columns = list(table)
        table.to_csv(self.path, index=False)
