"""Where a run leaves its results: a folder, a CSV file and wandb."""

import contextlib
import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import wandb
import yaml

# What wandb does: keep its files here, send them to its server, or nothing.
WandbMode = Literal["offline", "online", "disabled"]


def new_run_folder(output_dir: Path) -> Path:
    """Create ``output_dir/run_N`` with the next free number; two runs never share a folder."""
    number = 1
    while True:
        folder = output_dir / f"run_{number}"
        # mkdir instead of a look first: another run may start at the same moment.
        with contextlib.suppress(FileExistsError):
            (folder / "checkpoints").mkdir(parents=True)
            return folder
        number += 1


class Tracker:
    """Writes metrics to ``metrics.csv``, one row per logged step, and to wandb."""

    def __init__(
        self,
        folder: Path,
        mode: WandbMode | None,  # None follows the variable WANDB_MODE
        step: int,  # where the run begins or goes on; rows after it are dropped, they come again
        run_id: str,  # of the wandb run to go on with; empty for a new one
    ) -> None:
        self.folder, self.path = folder, folder / "metrics.csv"
        self.columns, self.rows = ["step", "epoch"], []
        if self.path.exists():
            with self.path.open(newline="") as file:
                reader = csv.DictReader(file)
                self.rows = [row for row in reader if int(row["step"]) <= step]
            self.columns = list(reader.fieldnames or self.columns)
        self.write()
        os.environ.setdefault("WANDB_MODE", "offline")  # needs no account
        config = folder / "config.yaml"
        self.run = wandb.init(
            project="training-at-larger-scale",
            name=folder.name,
            id=run_id or None,
            resume="allow",
            dir=folder,
            config=yaml.safe_load(config.read_text()) if config.exists() else {},
            mode=mode,
            settings=wandb.Settings(silent=True),
        )

    def log(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Log numbers after an optimiser step."""
        self.rows.append({"step": step, "epoch": epoch, **metrics})
        new_columns = [name for name in metrics if name not in self.columns]
        if new_columns:  # the first row, and the first validation
            self.columns += new_columns
            self.write()
        else:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(self.rows[-1])
        self.run.log({"epoch": epoch, **metrics}, step=step)

    def write(self) -> None:
        """Write all rows; under another name first, so that a crash loses none."""
        temporary = self.path.with_name("metrics.csv.tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)
        temporary.replace(self.path)

    def show(self, step: int, picture: Path) -> None:
        """Hand a PNG file to wandb as well."""
        self.run.log({picture.stem: wandb.Image(str(picture))}, step=step)
