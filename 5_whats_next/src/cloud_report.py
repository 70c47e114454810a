"""Says at the end what the training has asked of the object storage."""

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from src.data.usecase_cloud_dataset import CloudDataset
from src.lightning_callbacks import module_of
from src.lightning_ranks import sum_over_ranks


class CloudReport(Callback):
    """Prints the requests, retries and bytes of all ranks and workers, training and validation."""

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data = module_of(pl_module).data
        found = [s.counts for s in (data.train_set, data.val_set) if isinstance(s, CloudDataset)]
        if not found:
            return
        total: Tensor = torch.stack(found).sum(dim=(0, 1))
        requests, retries, read = (int(count) for count in sum_over_ranks(*total))
        module_of(pl_module).print(
            f"storage   {requests:,} requests, {retries:,} retries, {read / 1e6:,.1f} MB read"
        )
