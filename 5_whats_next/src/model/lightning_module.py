"""The masked autoencoder as a LightningModule: what a step computes, and how ranks share it.

Shapes: B samples of this rank, V variables, T times, H latitudes, W longitudes.
"""

import json
from collections.abc import Mapping
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from src.checkpoint import differences
from src.data.lightning_datamodule import FieldDataModule
from src.errors import UserError
from src.evaluation import SquaredError, baselines
from src.lightning_precision import step_is_left_out, unscale
from src.lightning_ranks import SharedError, is_finite_everywhere, shared_fate, sum_over_ranks
from src.model.micro_batches import backward_in_parts
from src.model.pytorch_model import MaskedAutoencoder, Output
from src.optim import make_optimizer
from src.reproducibility import leave_memory_unfilled

Batch = tuple[Tensor, Tensor]  # x (B, V, T, H, W), index (B,)
# What a checkpoint was trained with that is older than the setting.
BEFORE = {
    "model.optimizer.schedule": "cosine",
    "model.optimizer.cycles": 1,
    "model.optimizer.cycle_factor": 1,
    "model.optimizer.min_lr_fraction": 0.0,
    "trainer.precision": "32-true",
}


class AutoencoderModule(L.LightningModule):
    """Everything about the training that is not about how many devices there are.

    Args:
        sample_shape: (V, T, H, W); null takes it from the data.
        optimizer: arguments of make_optimizer: lr, betas, weight_decay, warmup_fraction.
        seed: seed of the training masks.
        micro_batches: compute each batch in so many parts, one after the other: memory for time.
        model: further arguments of MaskedAutoencoder.
    """

    model: MaskedAutoencoder

    def __init__(
        self,
        sample_shape: tuple[int, int, int, int] | None = None,
        optimizer: Mapping[str, Any] | None = None,
        seed: int = 0,
        micro_batches: int = 1,
        **model: Any,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.micro_batches = micro_batches
        self.model_settings = model  # an assignment of its own: LightningCLI looks where it goes

    def configure_model(self) -> None:
        """Build the model, as soon as the data have told their shape.

        Lightning calls this on every rank, with the same seed, and again before ``test``.
        """
        leave_memory_unfilled()
        if "model" in self._modules:
            return
        if self.hparams["sample_shape"] is None:
            # Into the checkpoint with it: load_from_checkpoint has no data to ask.
            self.save_hyperparameters({"sample_shape": self.data.train_set.sample_shape})
        with shared_fate():
            self.model = self.new_model()
        if self.device_mesh is not None:  # strategy: fsdp
            # Block by block: only one block at a time is whole on a device.
            for block in [*self.model.encoder.blocks, *self.model.decoder.blocks, self.model]:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])

    def new_model(self) -> MaskedAutoencoder:
        """A model with new weights."""
        shape, seed = self.hparams["sample_shape"], self.hparams["seed"]
        return MaskedAutoencoder(sample_shape=shape, seed=seed, **self.model_settings)

    def whole_model(self) -> MaskedAutoencoder:
        """The model with all its weights, on rank 0; all ranks have to call this together."""
        if self.device_mesh is None:
            return self.model
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(self.model, options=whole)
        model = self.new_model()
        if weights:
            model.load_state_dict(weights)
        return model.to(self.device)

    @property
    def data(self) -> FieldDataModule:
        """The data that the Trainer was given."""
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, FieldDataModule):
            raise UserError("AutoencoderModule needs a FieldDataModule: it asks it for the shapes")
        return data

    def forward(self, x: Tensor, index: Tensor, epoch: int | None = None) -> Output:
        """See MaskedAutoencoder.forward."""
        return self.model(x, index, epoch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of the global batch, as far as this rank computes it."""
        x, index = batch
        # From the step and not from current_epoch: the masks follow the samples, also on a resume.
        epoch = self.global_step // self.data.steps_per_epoch
        if self.micro_batches > 1:
            error, count, loss = backward_in_parts(self, x, index, epoch, self.micro_batches)
        else:
            output = self(x, index, epoch)
            error, count = sum_over_ranks(output.squared_error.detach(), output.valid_count)
            count = count.clamp(min=1)
            # DDP averages the gradients over the ranks: the division by world_size is undone here,
            # and what remains is the sum of all errors over the count of all valid elements. A mean
            # of the ranks' means would be wrong: the ranks see different amounts of land.
            loss = output.squared_error * self.trainer.world_size / count
        # Logged is the loss of the global batch. (sync_dist=True would be right here too, and cost
        # a barrier and a second sum in each step.)
        self.log("train_loss", error / count, prog_bar=True, rank_zero_only=True)
        self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"], rank_zero_only=True)
        return loss

    def optimizer_zero_grad(
        self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer
    ) -> None:
        """Lightning calls this between ``training_step`` and the backward pass."""
        if self.micro_batches == 1:
            optimizer.zero_grad()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm of the gradient, which DDP has averaged by now, as chapter 0 does.

        Raises SharedError, with the weights untouched, if the norm is not finite; with 16-mixed
        only if it is no matter of the scale, because else the scaler leaves the step out.
        """
        scaler = unscale(self.trainer, optimizer)
        limit = float("inf") if gradient_clip_val is None else gradient_clip_val
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        if isinstance(norm, DTensor):  # each rank has a shard of the gradient
            norm = norm.full_tensor()
        if not is_finite_everywhere(norm) and not step_is_left_out(scaler):
            raise SharedError(
                f"step {self.global_step + 1}: the norm of the gradient is {norm.item()}; stopped "
                "before the weights changed. Lower model.optimizer.lr (or optimizer.lr), or look "
                "for infinite values in the data"
            )

    def on_validation_epoch_start(self) -> None:
        self.error, self.total, self.count = SquaredError(self.data.val_set), 0.0, 0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add up the errors of this rank's own samples; the masks never change."""
        x, index = self.own(batch)
        self.add_up(x, self(x, index))

    def add_up(self, x: Tensor, output: Output) -> None:
        """Add the errors of a batch."""
        self.total += output.squared_error.item()
        self.count += int(output.valid_count)
        self.error.update(output.prediction, x, output.hidden)

    def all_ranks_scores(self) -> dict[str, float]:
        """Loss and RMSE: the sums of all ranks divided, not the means of each."""
        sums = torch.tensor([self.total, self.count], dtype=torch.float64)
        total, count = sum_over_ranks(sums)[0].tolist()
        return {"val_loss": total / max(1, count), **self.rmse(self.error)}

    def on_validation_epoch_end(self) -> None:
        """Log the scores of all ranks."""
        metrics = self.all_ranks_scores()
        # A NaN would never compare as better or worse, and so decide what the best checkpoint is.
        if not all(np.isfinite(list(metrics.values()))):
            raise SharedError(
                f"validation gave {metrics}; is every variable valid somewhere, and finite?"
            )
        # The same on all ranks already: the mean that sync_dist takes changes nothing.
        self.log_dict(metrics, prog_bar=True, sync_dist=True)

    def on_test_epoch_start(self) -> None:
        self.on_validation_epoch_start()
        self.baselines = baselines(self.data.val_set)
        self.errors = {name: SquaredError(self.data.val_set) for name in self.baselines}

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score the model, and the baselines on exactly the same elements."""
        x, index = self.own(batch)
        output = self(x, index)
        self.add_up(x, output)
        x, index, hidden = x.cpu(), index.cpu(), output.hidden.cpu()
        for name, guess in self.baselines.items():
            self.errors[name].update(guess(x, index, hidden), x, hidden)

    def on_test_epoch_end(self) -> None:
        """The scores of all ranks; ``Report`` prints them."""
        own = self.all_ranks_scores()
        self.scores = {"masked autoencoder": own}
        self.scores |= {name: self.rmse(error) for name, error in self.errors.items()}
        self.log_dict(own, sync_dist=True, logger=False)

    def predict_step(self, batch: Batch, batch_idx: int) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of this rank's samples (B,), reconstructions in physical units, what was hidden.

        Visible values are the given ones; where the data have no value there is none here either.
        """
        x, index = batch
        output = self(x, index)
        restored = torch.where(output.hidden, output.prediction, x)
        restored = restored.masked_fill(torch.isnan(x), torch.nan).cpu()
        dataset = self.data.val_set
        std, mean = (torch.from_numpy(a)[:, None, None, None] for a in (dataset.std, dataset.mean))
        own = (index % self.trainer.world_size == self.trainer.global_rank).cpu()
        return index.cpu()[own], (restored * std + mean)[own], output.hidden.cpu()[own]

    def own(self, batch: Batch) -> Batch:
        """Turn samples of other ranks, which fill up the last round, to land: they count nothing.

        They cannot be left out, because each rank has to take part in each batch.
        """
        x, index = batch
        foreign = index % self.trainer.world_size != self.trainer.global_rank
        return x.masked_fill(foreign[:, None, None, None, None], torch.nan), index

    def rmse(self, error: SquaredError) -> dict[str, float]:
        """RMSE over all ranks, in physical units."""
        error.total, error.count = sum_over_ranks(error.total, error.count)
        return error.rmse()

    def configure_optimizers(self) -> Any:
        """AdamW and a schedule that is stepped after every optimiser step.

        The number of steps comes from the data. Lightning's ``estimated_stepping_batches`` would
        build the training loader now, before a resumed run has its counters back
        (https://github.com/Lightning-AI/pytorch-lightning/issues/20550).
        """
        given = self.trainer.accumulate_grad_batches
        if given != 1:
            raise SharedError(
                f"trainer.accumulate_grad_batches: {given} changes the global batch; allowed: 1 "
                "(micro_batches computes a batch in parts)"
            )
        most = self.data.batch_size // self.trainer.world_size
        if not 1 <= self.micro_batches <= most:
            raise SharedError(
                f"micro_batches: {self.micro_batches} parts of a batch of {most} samples in "
                f"each process; allowed: from 1 to {most}"
            )
        steps = (self.trainer.max_epochs or 1) * self.data.steps_per_epoch
        optimizer, scheduler = make_optimizer(
            self.model, steps, **(self.hparams["optimizer"] or {})
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def fingerprint(self) -> dict[str, Any]:
        """What a resumed run must have in common with the run that it continues."""
        model = {key: value for key, value in self.hparams.items() if not key.startswith("_")}
        names = ("max_epochs", "gradient_clip_val", "precision")
        trainer = {name: getattr(self.trainer, name) for name in names}
        found = {"model": model, "data": self.data.fingerprint(), "trainer": trainer}
        return json.loads(json.dumps(found))  # lists and tuples are the same here

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["fingerprint"] = self.fingerprint()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise SharedError if the training goes on from another configuration's checkpoint."""
        trainer = self._trainer
        if trainer is None or trainer.state.fn != "fit" or "fingerprint" not in checkpoint:
            return
        for key, (there, here) in differences(checkpoint["fingerprint"], self.fingerprint()):
            if there is None and BEFORE.get(key) == here:
                continue
            raise SharedError(
                f"{key} is {there} in the checkpoint, but {here} in this configuration; "
                "to change it, start a new run"
            )
