"""Writes what ``predict`` gives to files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import xarray as xr
from lightning.pytorch.callbacks import BasePredictionWriter

from src.lightning_callbacks import module_of


class WritePredictions(BasePredictionWriter):
    """Writes what ``predict`` gives to NetCDF files in the run's folder, one for each rank."""

    def __init__(self) -> None:
        super().__init__(write_interval="epoch")

    def write_on_epoch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write (sample, time, lat, lon) of each variable, and which values the model predicted."""
        dataset, folder = module_of(pl_module).data.val_set, Path(trainer.log_dir or ".")
        index, restored, hidden = (
            torch.cat(parts).numpy() for parts in zip(*predictions, strict=True)
        )
        axes = ("sample", "step", "y", "x")
        content: dict[str, tuple] = {"hidden": (axes, hidden[:, 0])}
        for number, name in enumerate(dataset.variables):
            content[name] = (axes, restored[:, number], {"units": dataset.units[number]})
        places = [dataset.coordinates(int(sample)) for sample in index]
        if places and all(place is not None for place in places):  # a rank may have no sample
            content |= {
                name: (("sample", axis), np.stack([getattr(place, name) for place in places]))
                for name, axis in (("time", "step"), ("lat", "y"), ("lon", "x"))
            }
        path = folder / f"predictions-{trainer.global_rank}.nc"
        xr.Dataset(content, coords={"sample": index}).to_netcdf(path)
        print(f"wrote {os.path.relpath(path)}: {len(index)} samples")
