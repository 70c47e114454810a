"""The masked autoencoder as a LightningModule: what a step computes, and how ranks share it.

A batch is x (B, V, T, H, W), index (B,).
"""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from src.model.pytorch_model import MaskedAutoencoder
from src.run.distributed import sum_over_ranks
from src.run.errors import UserError
from src.run.evaluation import latitude_weights, squared_error, to_scores
from src.run.optim import clip_gradients, make_optimizer


class AutoencoderModule(L.LightningModule):
    """The training step and the validation; any number of devices gives the same results.

    Args:
        optimizer: arguments of make_optimizer.
        seed: seed of the training masks.
        sample_shape: (V, T, H, W); null takes it from the data.
        latitude_weighted: weight the training loss with the cosine of latitude, as the scores are.
        model: further arguments of MaskedAutoencoder.
    """

    def __init__(
        self,
        optimizer: dict[str, Any] | None = None,
        seed: int = 0,
        sample_shape: list[int] | None = None,
        latitude_weighted: bool = False,
        **model: Any,
    ) -> None:
        super().__init__()
        self.model_settings = model  # on a line of its own: jsonargparse follows it
        self.save_hyperparameters()
        self.model: Any = None

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

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of this rank's samples.

        With several devices Lightning wraps this module in DistributedDataParallel, and calls this
        through it. The backward pass that follows averages the gradients over the ranks.
        """
        x, index = batch
        # current_epoch is global_step // steps_per_epoch: each batch is one optimiser step.
        weights = self.loss_weights(index)
        output = self.model(x, index, self.current_epoch, weights)
        # The mean over all ranks' hidden ocean values, and not the mean of the ranks' means: one
        # rank may have much land.
        count = sum_over_ranks(output.valid_count).clamp(min=1)
        mean_error = sum_over_ranks(output.squared_error) / count
        self.log("train_loss", mean_error, prog_bar=True)
        # The gradients of the ranks have to be added, because the count is that of all ranks. DDP
        # gives their average, the sum divided by world_size. So multiply by world_size.
        return output.squared_error / count * self.trainer.world_size

    def loss_weights(self, index: Tensor) -> Tensor | None:
        """The weights of the squared errors of these samples in the loss, if there are any."""
        if not self.hparams.latitude_weighted:
            return None
        return latitude_weights(self.trainer.datamodule.train_set, index)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip as chapter 0 does. Raises UserError, on all ranks alike, for a non-finite norm."""
        # Lightning adds the parameters' norms in the optimiser's order: the last digit would
        # differ. And DDP has averaged the gradient by now, so all ranks see the same norm.
        clip_gradients(self.model, self.trainer.gradient_clip_val, self.global_step + 1)

    def on_validation_epoch_start(self) -> None:
        """Begin to add up: errors and counts."""
        self.sums = torch.zeros(2, 1)  # the first batch makes it (2, V), float64

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Only add up: the ranks may have unequal numbers of samples, and even of batches."""
        x, index = batch
        output = self.model(x, index)
        weights = latitude_weights(self.trainer.datamodule.val_set, index)
        error = squared_error(output.prediction, x, output.hidden, weights)
        self.sums = self.sums + error.cpu()

    def on_validation_epoch_end(self) -> None:
        """Add up all ranks, and divide. The mean of the ranks' scores would be another number."""
        if self.trainer.sanity_checking:  # its two batches may have no ocean
            return
        scores = to_scores(sum_over_ranks(self.sums), self.trainer.datamodule.val_set)
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
