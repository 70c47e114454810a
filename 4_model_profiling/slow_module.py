"""An exercise: a training step with one slow line, for profiler.py to find.

In lightning_train.py, replace the import of AutoencoderModule by this one:

    from slow_module import SlowModule as AutoencoderModule
"""

from torch import Tensor

from src.model.lightning_module import AutoencoderModule


class SlowModule(AutoencoderModule):
    """The same training, which also logs how much of each batch is land."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """As AutoencoderModule's."""
        x, _ = batch
        self.log("train_land", share_of_land(x))
        return super().training_step(batch, batch_idx)


def share_of_land(x: Tensor) -> float:
    """The share of the values of ``x`` (B, V, T, H, W) that are missing."""
    rows = x.flatten(0, 3)
    missing = sum(row.isnan().sum().item() for row in rows)
    return missing / x.numel()
