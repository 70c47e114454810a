"""Where a run leaves its results: a folder of its own, a CSV file, and wandb beside it."""

import csv
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import wandb

from src.errors import UserError

# What wandb does: keep its files here, send them to its server, or nothing.
WandbMode = Literal["offline", "online", "disabled"]

PACKAGES = ("torch", "numpy", "xarray", "wandb")


def new_run_folder(output_dir: Path) -> Path:
    """Create ``output_dir/run_N`` with the next free number; two runs never share a folder."""
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            folder = output_dir / f"run_{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
                continue
            (folder / "checkpoints").mkdir()
            return folder
    except OSError as error:
        raise UserError(
            f"trainer.output_dir: cannot write to {output_dir}: {error.strerror}"
        ) from error


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages}


def wandb_mode(configured: WandbMode | None) -> WandbMode:
    """The configured mode, else the variable WANDB_MODE, else offline, which needs no account."""
    asked = configured or os.environ.get("WANDB_MODE") or "offline"
    modes: tuple[WandbMode, ...] = get_args(WandbMode)
    for mode in modes:
        if mode == asked:
            return mode
    raise UserError(f"WANDB_MODE: {asked!r} is unknown; allowed: {', '.join(modes)}")


class Tracker:
    """Writes metrics to ``metrics.csv`` and to wandb.

    The CSV has one row per logged step, with empty cells for what was not measured there. wandb
    keeps its files in the run's folder (``offline``, no account needed), sends them (``online``) or
    does nothing (``disabled``).

    Args:
        folder: the run's folder.
        variables: names of the dataset's variables.
        config: every setting, for wandb.
        mode: what wandb does.
        step: where the run begins or continues; later rows are dropped, they come again.
        run_id: of the wandb run to continue; empty for a new one.
    """

    def __init__(
        self,
        folder: Path,
        variables: Sequence[str],
        config: Mapping[str, Any],
        mode: WandbMode,
        step: int = 0,
        run_id: str = "",
    ) -> None:
        self.folder = folder
        self.path = folder / "metrics.csv"
        columns = ["step", "epoch", "train_loss", "lr", "samples_per_second", "val_loss"]
        columns += [f"rmse_{name}" for name in variables]
        rows = self.read_rows(step)
        # Written beside and renamed, so that a crash here cannot lose the first half's rows.
        temporary = self.path.with_name("metrics.csv.tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self.path)
        self.file = self.path.open("a", newline="")
        self.writer = csv.DictWriter(self.file, columns)
        try:
            self.run = wandb.init(
                project="training-at-larger-scale",
                name=folder.name,
                id=run_id or None,
                resume="allow",
                dir=folder,
                config={**config, "versions": package_versions()},
                mode=mode,
                settings=wandb.Settings(silent=True),
            )
        except wandb.Error as error:  # online, but not logged in or not connected
            raise UserError(f"trainer.wandb: {' '.join(str(error).split())}") from error

    def read_rows(self, last_step: int) -> list[dict[str, str]]:
        """The rows of an earlier part of the run, up to and including ``last_step``."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            # A killed run may leave half a row at the end, in which the last cells are missing.
            rows = [row for row in csv.DictReader(file) if None not in row.values()]
        return [row for row in rows if int(row["step"]) <= last_step]

    def log(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Log numbers after an optimiser step."""
        self.writer.writerow({"step": step, "epoch": epoch, **metrics})
        self.file.flush()
        self.run.log({"epoch": epoch, **metrics}, step=step)

    def show(self, step: int, picture: Path) -> None:
        """Hand a PNG file to wandb as well."""
        self.run.log({picture.stem: wandb.Image(str(picture))}, step=step)

    def summarise(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Hand the final scores, baselines included, to wandb."""
        for name, metrics in scores.items():
            self.run.summary.update({f"{name}/{key}": value for key, value in metrics.items()})

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.file.close()
        self.run.finish(exit_code=0 if kind is None else 1)
