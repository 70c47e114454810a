"""The masked autoencoder as a LightningModule: what a step computes, and how ranks share it.

A batch is x (B, V, T, H, W), index (B,).
"""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from src.model.pytorch_model import MaskedAutoencoder, Output
from src.run.distributed import sum_over_ranks
from src.run.evaluation import squared_errors, to_scores
from src.run.optim import clip_gradients, make_optimizer


class AutoencoderModule(L.LightningModule):
    """The training step and the validation; any number of devices gives the same results.

    Args:
        optimizer: arguments of make_optimizer.
        seed: seed of the training masks.
        sample_shape: (V, T, H, W); null takes it from the data.
        compile: the training's forward and backward pass through torch.compile, which needs g++.
        model: further arguments of MaskedAutoencoder.
    """

    def __init__(
        self,
        optimizer: dict[str, Any] | None = None,
        seed: int = 0,
        sample_shape: list[int] | None = None,
        compile: bool = False,
        **model: Any,
    ) -> None:
        super().__init__()
        self.model_settings = model  # on a line of its own: jsonargparse follows it
        self.save_hyperparameters()
        self.model: Any = None

    @property
    def loaders(self) -> Any:
        """The data, as chapter 0 has them."""
        return self.trainer.datamodule.loaders

    def configure_model(self) -> None:
        """Build the model, now that the data are loaded and have a shape."""
        if self.model is not None:
            return  # Lightning calls this before each of fit, validate and test
        shape = self.hparams.sample_shape or self.loaders.train_set.sample_shape
        # Saved, because load_from_checkpoint has no data to ask.
        self.hparams.sample_shape = list(shape)
        # Lightning calls this in the context of the GPU, whose generator draws other weights.
        with torch.device("cpu"):
            self.model = MaskedAutoencoder(
                shape, seed=self.hparams.seed, **self.model_settings
            )
        # For the training alone: validation, with its smaller last batch, would compile twice more.
        self.training_forward = self.model.forward
        if self.hparams.compile:
            self.training_forward = torch.compile(self.model.forward, fullgraph=True)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of this rank's samples.

        With several devices Lightning wraps this module in DistributedDataParallel, and calls this
        through it. The backward pass that follows averages the gradients over the ranks.
        """
        x, index = batch
        # current_epoch is global_step // steps_per_epoch: each batch is one optimiser step.
        # As a tensor: a number would be part of the compiled code, and would cause a second one.
        epoch = torch.full((), self.current_epoch, device=x.device)
        output = self.training_forward(x, index, epoch)
        # The mean over all ranks' hidden ocean values, and not the mean of the ranks' means: one
        # rank may have much land.
        own = torch.stack([output.squared_error, output.valid_count])
        error, count = sum_over_ranks(own)
        count = count.clamp(min=1)
        self.log("train_loss", error / count)
        # The gradients of the ranks have to be added, because the count is that of all ranks. DDP
        # gives their average, the sum divided by world_size. So multiply by world_size.
        return output.squared_error / count * self.trainer.world_size

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip as chapter 0 does."""
        # Lightning adds the parameters' norms in the optimiser's order: the last digit would
        # differ. And DDP has averaged the gradient by now, so all ranks see the same norm.
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler and optimizer.defaults["fused"]:
            # In 16-mixed gradients are scaled up. A fused AdamW scales them back in its own step,
            # which comes after the clipping.
            scaler.unscale_(optimizer)
        norm = clip_gradients(self.model, self.trainer.gradient_clip_val)
        self.log("grad_norm", norm)

    def on_validation_epoch_start(self) -> None:
        """Begin to add up: errors and counts."""
        num_variables = len(self.loaders.val_set.variables)
        self.sums = torch.zeros(2, num_variables, dtype=torch.float64)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Only add up: the ranks may have unequal numbers of samples, and even of batches."""
        x, index = batch
        output = Output(*(tensor.cpu() for tensor in self.model(x, index)))
        area = self.loaders.val_set.cell_area(index)
        self.sums += squared_errors(output.prediction, x.cpu(), output.hidden, area)

    def on_validation_epoch_end(self) -> None:
        """Add up all ranks, and divide. The mean of the ranks' scores would be another number."""
        scores = to_scores(sum_over_ranks(self.sums), self.loaders.val_set)
        # They are equal on all ranks, so a mean changes nothing. Without it Lightning warns.
        self.log_dict(scores, sync_dist=True)

    test_step = validation_step
    on_test_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The reconstruction (B, V, T, H, W), normalised, for Trainer.predict."""
        x, index = batch
        return self.model(x, index).prediction

    def configure_optimizers(self) -> Any:
        """AdamW, and a schedule that takes a step after each optimiser step."""
        # Not trainer.estimated_stepping_batches, which would build the loader before a resumed run
        # has its step: https://github.com/Lightning-AI/pytorch-lightning/issues/20550
        steps = self.trainer.max_epochs * self.loaders.steps_per_epoch
        settings = self.hparams.optimizer or {}
        optimizer, scheduler = make_optimizer(self.model, steps, **settings)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
