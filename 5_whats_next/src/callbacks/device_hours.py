"""What a run has cost."""

import json
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only


class DeviceHours(Callback):
    """Says at the end, and in summary.json, how many hours of a device a run has taken.

    All its parts count; what a kill has lost after the last checkpoint does not. Place it behind
    Report, which writes summary.json.
    """

    def __init__(self) -> None:
        self.before = 0.0  # of the parts before this one
        self.start = time.monotonic()

    def hours(self, trainer: L.Trainer) -> float:
        """Hours of all parts so far, times the devices."""
        hours = (time.monotonic() - self.start) / 3600
        return self.before + hours * trainer.world_size

    def on_save_checkpoint(
        self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """They are part of a checkpoint."""
        checkpoint["device_hours"] = self.hours(trainer)

    def on_load_checkpoint(
        self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on counting."""
        self.before = checkpoint["device_hours"]

    @rank_zero_only
    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Say what the run has cost."""
        hours = self.hours(trainer)
        print(f"cost      {hours:.3f} device hours", flush=True)
        summary = Path(trainer.default_root_dir, "summary.json")
        if summary.exists():  # Report writes one for our own model
            content = json.loads(summary.read_text()) | {"device_hours": hours}
            summary.write_text(json.dumps(content, indent=2))
