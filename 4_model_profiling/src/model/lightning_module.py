"""The masked autoencoder as a LightningModule: what a step computes, and how ranks share it.

A batch is x (B, V, T, H, W), index (B,).
"""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor

from src.model.compiled import compile_forward
from src.model.micro_batches import backward_each, count_scored, split
from src.model.pytorch_model import MaskedAutoencoder
from src.run.distributed import sum_over_ranks
from src.run.errors import UserError
from src.run.evaluation import latitude_weights, squared_error, to_scores
from src.run.optim import make_optimizer


class AutoencoderModule(L.LightningModule):
    """The training step and the validation; any number of devices gives the same results.

    Args:
        optimizer: arguments of make_optimizer.
        seed: seed of the training masks.
        sample_shape: (V, T, H, W); null takes it from the data.
        latitude_weighted: weight the training loss with the cosine of latitude, as the scores are.
        compile: the forward pass of the training through torch.compile, which needs g++.
        micro_batches: parts of a batch that are computed one after the other, to save memory.
        model: further arguments of MaskedAutoencoder.
    """

    def __init__(
        self,
        optimizer: dict[str, Any] | None = None,
        seed: int = 0,
        sample_shape: list[int] | None = None,
        latitude_weighted: bool = False,
        compile: bool = False,
        micro_batches: PositiveInt = 1,
        **model: Any,
    ) -> None:
        super().__init__()
        self.model_settings = model  # on a line of its own: jsonargparse follows it
        self.save_hyperparameters()
        self.model: Any = None
        # The first step with a non-finite gradient. No buffer: DDP would send it in each step.
        self.bad_step = torch.zeros((), dtype=torch.int64)

    def configure_model(self) -> None:
        """Build the model, now that the data are loaded and have a shape."""
        if self.model is not None:
            return  # Lightning calls this before each of fit, validate and test
        # Lightning calls this in the context of the GPU, whose generator draws other weights, and
        # where new tensors of a dataset would meet those that it has on the CPU.
        with torch.device("cpu"):
            shape = (
                self.hparams.sample_shape
                or self.trainer.datamodule.train_set.sample_shape
            )
            # Saved, because load_from_checkpoint has no data to ask.
            self.hparams.sample_shape = list(shape)
            self.model = MaskedAutoencoder(
                shape, seed=self.hparams.seed, **self.model_settings
            )
        if self.hparams.compile:
            compile_forward(self.model)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of this rank's samples.

        With several devices Lightning wraps this module in DistributedDataParallel, and calls this
        through it. The backward pass that follows averages the gradients over the ranks.
        """
        x, index = batch
        # current_epoch is global_step // steps_per_epoch: each batch is one optimiser step.
        epoch = self.current_epoch
        # Lightning would clear the gradients after this method, and with them those of the first
        # micro-batches. So clear them here; optimizer_zero_grad does nothing.
        self.trainer.optimizers[0].zero_grad()
        # The mean over all ranks' hidden ocean values, and not the mean of the ranks' means: one
        # rank may have much land.
        if self.hparams.micro_batches == 1:
            output = self.model(x, index, epoch, self.loss_weights(index))
            count = sum_over_ranks(output.valid_count).clamp(min=1)
            error = output.squared_error
        else:
            # Each part is divided by the count of the whole batch, needed before the first one.
            count = sum_over_ranks(count_scored(self, x, index)).clamp(min=1)
            *first_parts, last_part = split(x, index, self.hparams.micro_batches)
            first_error = backward_each(self, first_parts, count)
            output = self.model(*last_part, epoch, self.loss_weights(last_part[1]))
            error = first_error + output.squared_error
        # Not with prog_bar=True: Lightning would then read the number in each step.
        self.log("train_loss", sum_over_ranks(error) / count)
        # The gradients of the ranks have to be added, because the count is that of all ranks. DDP
        # gives their average, the sum divided by world_size. So multiply by world_size.
        return output.squared_error / count * self.trainer.world_size

    def loss_weights(self, index: Tensor) -> Tensor | None:
        """The weights of the squared errors of these samples in the loss, if there are any."""
        if not self.hparams.latitude_weighted:
            return None
        return latitude_weights(self.trainer.datamodule.train_set, index)

    def optimizer_zero_grad(self, *_: Any) -> None:
        """Nothing: after training_step, some gradients of micro_batches are there already."""

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip as chapter 0 does, and remember whether the norm was finite."""
        # Lightning adds the parameters' norms in the optimiser's order: the last digit would
        # differ. And DDP has averaged the gradient by now, so all ranks see the same norm.
        largest_norm = self.trainer.gradient_clip_val or float("inf")
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler and optimizer.defaults.get("fused"):
            # Lightning leaves this to a fused optimiser's step, which comes after the clipping:
            # the norm would be that of scaled gradients.
            scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), largest_norm)
        if not scaler:  # in 16-mixed the scaler skips a bad step
            self.remember_bad_step(norm)
        if (self.global_step + 1) % self.trainer.log_every_n_steps == 0:
            self.check_finite()

    def remember_bad_step(self, norm: Tensor) -> None:
        """Keep the number of the first bad step on the device."""
        # To ask for it in each step is to wait for a GPU in each step.
        bad_step = self.bad_step.to(norm.device)
        is_first = ~torch.isfinite(norm) & (bad_step == 0)
        self.bad_step = torch.where(is_first, self.global_step + 1, bad_step)

    def check_finite(self) -> None:
        """Wait for the device. Raises UserError, on all ranks alike, for a non-finite gradient."""
        bad_step = int(self.bad_step)  # waits
        if bad_step:
            raise UserError(
                f"step {bad_step}: the gradient is not finite; lower optimizer.lr?"
                " checkpoints are from before it"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Never save weights after a bad step. Their scores are not logged either."""
        self.check_finite()

    def on_validation_epoch_start(self) -> None:
        """Begin to add up: errors and counts."""
        self.check_finite()
        self.sums = torch.zeros(2, 1)  # the first batch makes it (2, V), float64

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Only add up: the ranks may have unequal numbers of samples, and even of batches."""
        x, index = batch
        output = self.model(x, index)
        weights = latitude_weights(self.trainer.datamodule.val_set, index)
        error = squared_error(output.prediction, x, output.hidden, weights)
        # On the device: a copy to the CPU would wait for each batch.
        self.sums = self.sums.to(error.device) + error

    def on_validation_epoch_end(self) -> None:
        """Add up all ranks, and divide. The mean of the ranks' scores would be another number."""
        if self.trainer.sanity_checking:  # its two batches may have no ocean
            return
        sums = sum_over_ranks(self.sums).cpu()
        scores = to_scores(sums, self.trainer.datamodule.val_set)
        # They are equal on all ranks, so a mean changes nothing. Without it Lightning warns.
        self.log_dict(scores, sync_dist=True)

    test_step = validation_step
    on_test_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Write the fields in physical units, hidden values predicted; one file for each batch."""
        x, index = batch
        output = self.model(x, index)
        dataset = self.trainer.datamodule.val_set
        std = dataset.std[:, None, None, None]
        mean = dataset.mean[:, None, None, None]
        fields = (
            torch.where(output.hidden & ~x.isnan(), output.prediction, x).cpu().numpy()
        )
        name = f"prediction_{self.global_rank}_{batch_idx}.npz"
        run_folder = Path(self.trainer.ckpt_path).parents[1]
        np.savez(run_folder / name, index=index.cpu(), fields=fields * std + mean)
        return index  # and not the fields: Lightning keeps what comes from here

    def configure_optimizers(self) -> Any:
        """AdamW, and a schedule that takes a step after each optimiser step."""
        trainer = self.trainer
        # 1.0 means all batches, the integer 1 a single one.
        limit = trainer.limit_train_batches
        if trainer.accumulate_grad_batches > 1 or isinstance(limit, int) or limit < 1.0:
            raise UserError(
                "trainer: our order of the samples needs an optimiser step per batch"
            )
        # Not trainer.estimated_stepping_batches, which would build the loader before a resumed run
        # has its step: https://github.com/Lightning-AI/pytorch-lightning/issues/20550
        steps = trainer.max_epochs * trainer.datamodule.steps_per_epoch
        optimizer, scheduler = make_optimizer(
            self.model, steps, **(self.hparams.optimizer or {})
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
