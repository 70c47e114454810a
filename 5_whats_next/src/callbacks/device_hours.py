"""What a run has cost."""

import lightning as L
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities import rank_zero_only


class DeviceHours(Timer):
    """Says at the end how many hours of a device the training has taken, in all its parts.

    Lightning's Timer keeps its seconds in each checkpoint, so what a kill has lost after the last
    one does not count. If the number of devices has changed, the last one is used for all parts.
    """

    @rank_zero_only
    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Say what the run has cost."""
        hours = self.time_elapsed() / 3600 * trainer.world_size
        print(f"cost      {hours:.3f} device hours", flush=True)
