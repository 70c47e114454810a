"""Three trainings that are slower than they have to be; each could be somebody's own.

The exercises of README.md use them. Measure before you read on: ``timing_benchmark.py`` tells in
which part of the step the time goes, ``profiler.py`` in which operators and functions, and
``check_planted.py`` whether you have found it, and whether your repair is one.
"""

from typing import Any

import numpy as np
import torch
from src.data.pytorch_dataset import OceanDataset
from src.model.lightning_module import AutoencoderModule, Batch
from torch import Tensor


class A(AutoencoderModule):
    """Also logs the loss of the sample that is reconstructed worst."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, index = batch
        epoch = self.global_step // self.data.steps_per_epoch
        losses = []
        for sample in range(len(x)):
            with torch.no_grad():
                output = self(x[sample : sample + 1], index[sample : sample + 1], epoch)
            losses.append((output.squared_error / output.valid_count.clamp(min=1)).item())
        self.log("worst_sample", max(losses))
        return super().training_step(batch, batch_idx)


class B(AutoencoderModule):
    """Also logs how strongly each weight matrix can stretch its input."""

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        for name, weight in self.model.named_parameters():
            if weight.ndim == 2:
                largest = torch.linalg.svdvals(weight.detach())[0]
                self.log(f"stretch/{name}", largest.item())


class C(OceanDataset):
    """Also makes sure that the fields are normalised, so that nothing else is ever learned from."""

    def __getitem__(self, index: int) -> Any:
        spread = np.nanstd(self.fields, axis=(1, 2, 3))
        if not np.allclose(spread, 1.0, atol=0.5):
            raise ValueError(f"the fields have a spread of {spread}")
        return super().__getitem__(index)
