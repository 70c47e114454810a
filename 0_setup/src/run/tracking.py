"""Where a run leaves its results: a folder, a CSV file and wandb."""

import atexit
import contextlib
import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import yaml

# What wandb does: keep its files here, send them to its server, or nothing.
WandbMode = Literal["offline", "online", "disabled"]


def new_run_folder(output_dir: Path) -> Path:
    """Create ``output_dir/run_N`` with the next free number; two runs never share a folder."""
    # Not inside the loop, which takes an error for a number that is in use.
    output_dir.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = output_dir / f"run_{number}"
        # mkdir instead of a look first: another run may start at the same moment.
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            (folder / "checkpoints").mkdir()
            return folder
        number += 1


def save_settings(folder: Path, settings: str) -> None:
    """Write config.yaml, from which a resume reads; a crash leaves the old one or the new one."""
    temporary = folder / "config.yaml.tmp"
    with temporary.open("w") as file:
        file.write(settings)
        file.flush()
        os.fsync(file.fileno())  # as for a checkpoint
    temporary.replace(folder / "config.yaml")


class Tracker:
    """Writes metrics to ``metrics.csv``, one row for each logged step, and to wandb.

    Args:
        folder: the run's.
        mode: what wandb does; None follows the variable WANDB_MODE, and else stays offline.
        step: where the run begins or goes on; later rows are dropped, because they come again.
        run_id: the wandb run to go on with; empty for a new one.
    """

    def __init__(
        self, folder: Path, mode: WandbMode | None, step: int, run_id: str
    ) -> None:
        self.folder = folder
        self.path = folder / "metrics.csv"
        self.columns = ["step", "epoch"]
        self.rows: list[dict] = []
        if self.path.exists():
            self.read_rows(step)
        self.write_all_rows()

        # Imported here: a run's first line need not wait for it, and other ranks do not need it.
        import wandb

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
        self.has_wandb = True
        # In front of wandb's own end, which shows a traceback if its process has been killed.
        atexit.register(self.tell_wandb, lambda: self.run.summary.update({}))

    def read_rows(self, last_step: int) -> None:
        """Read the rows of an earlier run, up to a step."""
        lines = self.path.read_text().splitlines(keepends=True)
        # A full disk cuts the last line where it likes: step 780 would become step 78.
        whole_lines = [line for line in lines if line.endswith("\n")]
        reader = csv.DictReader(whole_lines)
        self.rows = [row for row in reader if int(row["step"]) <= last_step]
        self.columns = list(reader.fieldnames or self.columns)

    def log(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Log numbers after an optimiser step."""
        row = {"step": step, "epoch": epoch, **metrics}
        self.rows.append(row)
        new_columns = [name for name in metrics if name not in self.columns]
        if new_columns:  # the first row, and the first validation
            self.columns += new_columns
            self.write_all_rows()
        else:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)
        self.tell_wandb(lambda: self.run.log({"epoch": epoch, **metrics}, step=step))

    def write_all_rows(self) -> None:
        """Write the whole file; under another name first, so that a crash loses none."""
        temporary = self.path.with_name("metrics.csv.tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)
            file.flush()
            os.fsync(file.fileno())  # before the name, as for a checkpoint
        temporary.replace(self.path)

    def log_picture(self, step: int, picture: Path) -> None:
        """Hand a PNG file to wandb as well."""
        import wandb

        image = wandb.Image(str(picture))
        self.tell_wandb(lambda: self.run.log({picture.stem: image}, step=step))

    def tell_wandb(self, call: Callable[[], None]) -> None:
        """Call a function of wandb's, as long as wandb's own process lives."""
        if not self.has_wandb:
            return
        try:
            call()
        except ConnectionError:
            # A cluster may send SIGTERM to all processes of a job, and wandb's own one ends at once
            # (https://github.com/wandb/wandb/issues/9963). The training goes on, to its checkpoint.
            import wandb

            print("wandb     its process has ended; metrics.csv goes on")
            self.has_wandb = False
            with contextlib.suppress(ConnectionError):
                wandb.teardown()
