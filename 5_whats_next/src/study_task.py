"""One evaluation for models that differ in patch size and mask ratio.

The validation loss of a model is the error on its own task: large patches leave large holes, and a
high mask ratio leaves little to go by. Losses of two tasks do not compare. Here all models see the
same pixels and are scored on the same hidden pixels, with holes that any of their patches can tile.

Shapes: B batch, V variables, T times, H latitudes, W longitudes; N patches, K visible ones, C
blocks.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from src.errors import UserError
from src.evaluation import SquaredError
from src.model.lightning_module import AutoencoderModule, Batch
from src.model.masking import Mask, random_mask, split
from src.model.pytorch_model import MaskedAutoencoder
from src.optim import make_optimizer

Size = tuple[int, int, int]  # times, latitudes, longitudes
PATCH = ("pt", "ph", "pw")  # their names in MaskedAutoencoder.axes


@dataclass
class SharedTask:
    """Hide ``mask_ratio`` of the blocks in which a sample has any value.

    Args:
        block: size of a block; the patch size of each model has to divide it.
        mask_ratio: share of the blocks that is hidden, whatever the model was trained with.
    """

    block: Size
    mask_ratio: float

    def block_of_patch(self, model: MaskedAutoencoder) -> Tensor:
        """(N,) number of the block in which each patch of ``model`` lies."""
        patches = [block // model.axes[axis] for block, axis in zip(self.block, PATCH, strict=True)]
        places = [torch.arange(count) // n for count, n in zip(model.grid, patches, strict=True)]
        _, rows, columns = (int(place[-1]) + 1 for place in places)
        time, row, column = torch.meshgrid(*places, indexing="ij")
        return ((time * rows + row) * columns + column).flatten()

    def mask(self, model: MaskedAutoencoder, valid: Tensor, index: Tensor) -> Mask:
        """The split of the patches, ``valid`` (B, N), for the samples ``index`` (B,).

        Which blocks are hidden depends on the sample and on where it has values: not on the patch
        size, the mask ratio or the seed of the training.
        """
        block = self.block_of_patch(model).to(valid.device)
        num_blocks, num_tokens = int(block[-1]) + 1, valid.shape[1]
        count = torch.zeros(len(valid), num_blocks, dtype=torch.int64, device=valid.device)
        block_valid = count.index_add_(1, block, valid.long()) > 0
        coarse = random_mask(block_valid, index, 0, None, self.mask_ratio)
        hidden = coarse.hidden[:, block] & valid
        visible = valid & ~hidden
        # Visible patches first, then hidden ones, then those without a value; a stable sort.
        ids_shuffle = torch.argsort(2 - 2 * visible.long() - hidden.long(), dim=1, stable=True)
        num_keep = coarse.ids_keep.shape[1] * (num_tokens // num_blocks)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        num_visible = visible.sum(dim=1, keepdim=True)
        return split(ids_shuffle, ids_restore, num_visible, num_keep, hidden)

    @contextmanager
    def given_to(self, model: MaskedAutoencoder) -> Iterator[None]:
        """Inside the ``with`` block the model is shown this task's visible pixels."""

        def hide(valid: Tensor, index: Tensor, epoch: int | Tensor | None) -> Mask:
            return self.mask(model, valid, index)

        vars(model)["hide"] = hide  # in front of the class's method
        try:
            yield
        finally:
            del vars(model)["hide"]


def shared_task(patch_sizes: Sequence[Size], window: Size, mask_ratio: float) -> SharedTask:
    """The task with the smallest blocks that patches of all these sizes tile.

    Raises UserError if the window has too few of them to hide some and show some.
    """
    block = tuple(math.lcm(*sizes) for sizes in zip(*patch_sizes, strict=True))
    number = math.prod(size // edge for size, edge in zip(window, block, strict=True))
    if not 0 < mask_ratio < 1 or not 0 < round(mask_ratio * number) < number:
        raise UserError(
            f"evaluation_mask_ratio: {mask_ratio} hides none or all of the {number} blocks of "
            f"{list(block)}, which patches of all sizes tile; allowed: between 0 and 1, and patch "
            "sizes whose common multiple is smaller"
        )
    return SharedTask((block[0], block[1], block[2]), mask_ratio)


class StudyModule(AutoencoderModule):
    """The training of a trial: so many steps, validated on the shared task and on its own.

    Args:
        task: the same for all trials.
        arguments: those of AutoencoderModule.
    """

    def __init__(self, task: SharedTask, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.task = task

    def configure_optimizers(self) -> Any:
        """The whole schedule within the trial's steps, which need not be whole epochs."""
        settings = self.hparams["optimizer"] or {}
        optimizer, scheduler = make_optimizer(self.model, self.trainer.max_steps, **settings)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        self.shared_error = SquaredError(self.data.val_set)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        x, index = batch
        with self.task.given_to(self.model):
            output = self(x, index)
        self.shared_error.update(output.prediction, x, output.hidden)

    def shared_score(self) -> float:
        """RMSE on the shared task: in the variable's units, or of several in their spreads."""
        return root_mean(self.shared_error)

    def own_score(self) -> float:
        """The same on the model's own task, which does not compare between trials."""
        return root_mean(self.error)


def root_mean(error: SquaredError) -> float:
    """One number for all variables; where there is one, in its units."""
    normalised = float((error.total.sum() / error.count.sum()).sqrt())
    return normalised * (float(error.dataset.std[0]) if len(error.dataset.std) == 1 else 1.0)
