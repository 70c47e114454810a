"""Lightning's checkpoints, written and read as chapter 0 does."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.serialization import get_unsafe_globals_in_checkpoint

from src.run.checkpoint import atomic_write, read_checkpoint
from src.run.errors import UserError


class AtomicCheckpointIO(TorchCheckpointIO):
    """Whole or not there.

    Lightning stages in TMPDIR and moves: where that is another filesystem, a crash while moving
    destroys the last checkpoint. https://github.com/Lightning-AI/pytorch-lightning/issues/21253
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint. Raises UserError if no resume could read it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            torch.save(checkpoint, file)
            file.flush()
            # Found now, and not by a resume after days: weights_only=True reads only some types.
            if types := get_unsafe_globals_in_checkpoint(file.name):
                raise UserError(
                    f"no resume could read {', '.join(types)} from this checkpoint; "
                    "give save_hyperparameters() plain numbers and texts"
                )

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint. Raises UserError if it is missing, damaged or another script's."""
        path = Path(path)
        checkpoint = read_checkpoint(path)
        if "state_dict" not in checkpoint:
            raise UserError(f"{path} is no checkpoint of Lightning")
        # ModelCheckpoint forgets its best score if the folder has another path than before.
        for state in checkpoint["callbacks"].values():
            if "dirpath" in state:
                state["dirpath"] = str(path.resolve().parent)
        return checkpoint
