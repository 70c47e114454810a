"""The masked autoencoder as a LightningModule: what a step computes, and how ranks share it."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from src.errors import UserError
from src.evaluation import squared_error, to_scores
from src.model.pytorch_model import MaskedAutoencoder
from src.optim import make_optimizer

# A batch is x (B, V, T, H, W), index (B,).


def sum_over_ranks(numbers: Tensor) -> Tensor:
    """The sum over all ranks. All of them have to call this, or the others wait for ever."""
    if not dist.is_initialized():
        return numbers.detach()
    # NCCL adds on GPUs, gloo on CPUs. A copy, because all_reduce writes into its argument.
    total = numbers.detach().to(
        "cuda" if dist.get_backend() == "nccl" else "cpu", copy=True
    )
    dist.all_reduce(total)
    return total.to(numbers.device)


def plain(settings: Any) -> dict[str, Any]:
    """Settings as plain numbers and lists: weights_only=True reads no types of jsonargparse."""
    return json.loads(json.dumps(dict(settings.items())))


class AutoencoderModule(L.LightningModule):
    """The training step and the validation; any number of devices gives the same results."""

    def __init__(
        self,
        optimizer: dict[str, Any] | None = None,  # arguments of make_optimizer
        seed: int = 0,  # of the training masks
        sample_shape: list[int]
        | None = None,  # (V, T, H, W); None takes it from the data
        **model: Any,  # further arguments of MaskedAutoencoder
    ) -> None:
        super().__init__()
        self.model_settings = model  # on a line of its own: jsonargparse follows it
        # save_hyperparameters reads the arguments from here, under these names.
        optimizer, model = plain(optimizer or {}), plain(model)
        self.save_hyperparameters()
        self.model: Any = None

    # Builds the model, now that the data are loaded and have a shape.
    def configure_model(self) -> None:
        if (
            self.model is None
        ):  # Lightning calls this before each of fit, validate, test
            shape = (
                self.hparams.sample_shape
                or self.trainer.datamodule.train_set.sample_shape
            )
            self.hparams.sample_shape = list(
                shape
            )  # load_from_checkpoint has no data to ask
            self.model = MaskedAutoencoder(
                shape, seed=self.hparams.seed, **self.model_settings
            )

    # With strategy: ddp Lightning wraps this module in DistributedDataParallel, and calls this
    # through it. The backward pass that follows averages the gradients over the ranks.
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, index = batch
        # current_epoch is global_step // steps_per_epoch: each batch is one optimiser step.
        output = self.model(x, index, self.current_epoch)
        # The mean over all ranks' hidden ocean values, and not the mean of the ranks' means: one
        # rank may have much land. DDP divides the sum of the gradients by the number of ranks,
        # which is taken back here.
        count = sum_over_ranks(output.valid_count).clamp(min=1)
        self.log(
            "train_loss", sum_over_ranks(output.squared_error) / count, prog_bar=True
        )
        return output.squared_error * self.trainer.world_size / count

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        """Clip as chapter 0 does. Raises UserError, on all ranks alike, for a non-finite norm."""
        # Lightning adds the parameters' norms in the optimiser's order: the last digit would
        # differ. And DDP has averaged the gradient by now, so all ranks see the same norm.
        limit = self.trainer.gradient_clip_val or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        if not torch.isfinite(norm):
            raise UserError(
                f"step {self.global_step + 1}: gradient {norm}; lower optimizer.lr?"
            )

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(
            2, 1
        )  # error and count; the first batch makes it (2, V), float64

    # Only adds up: the ranks may have unequal numbers of samples, and even of batches.
    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, index = batch
        output = self.model(x, index)
        # To the CPU: Apple GPUs have no float64.
        self.sums = self.sums + squared_error(
            output.prediction.cpu(), x.cpu(), output.hidden.cpu()
        )

    # The sums of all ranks, divided. The mean of the ranks' scores would be another number.
    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:  # its two batches may have no ocean
            scores = to_scores(
                sum_over_ranks(self.sums), self.trainer.datamodule.val_set
            )
            # They are equal on all ranks, so a mean changes nothing. Without it Lightning warns.
            self.log_dict(scores, sync_dist=True)

    test_step, on_test_epoch_start = validation_step, on_validation_epoch_start
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Write the fields in physical units, hidden values predicted; one file for each batch."""
        x, index = batch
        output, dataset = self.model(x, index), self.trainer.datamodule.val_set
        fields = (
            torch.where(output.hidden & ~x.isnan(), output.prediction, x).cpu().numpy()
        )
        fields = (
            fields * dataset.std[:, None, None, None]
            + dataset.mean[:, None, None, None]
        )
        name = f"prediction_{self.global_rank}_{batch_idx}.npz"
        # Into the run's folder.
        np.savez(
            Path(self.trainer.ckpt_path).parents[1] / name,
            index=index.cpu(),
            fields=fields,
        )
        return index  # and not the fields: Lightning keeps what comes from here

    def configure_optimizers(self) -> Any:
        # Not trainer.estimated_stepping_batches, which would build the loader before a resumed run
        # has its step: https://github.com/Lightning-AI/pytorch-lightning/issues/20550
        # As texts: a limit of 1.0 means all batches, and 1 a single one.
        limits = (
            f"{self.trainer.accumulate_grad_batches} {self.trainer.limit_train_batches}"
        )
        if limits != "1 1.0":
            raise UserError(
                "trainer: our order of the samples needs an optimiser step per batch"
            )
        steps = self.trainer.max_epochs * self.trainer.datamodule.steps_per_epoch
        optimizer, scheduler = make_optimizer(
            self.model, steps, **self.hparams.optimizer
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
