"""Checkpoints of Lightning that are whole or not there, and that a resume can read."""

from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.serialization import get_unsafe_globals_in_checkpoint

from src.run.checkpoint import read_checkpoint, save_atomic
from src.run.errors import UserError


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes and reads checkpoints as chapter 0 does.

    Lightning stages in TMPDIR and moves: where that is another filesystem, a crash while moving
    destroys the last checkpoint. https://github.com/Lightning-AI/pytorch-lightning/issues/21253
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint. Raises UserError if no resume could read it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unchecked = path.with_name(f"{path.name}.unchecked")
        save_atomic(checkpoint, unchecked)
        # Found now, and not by a resume after days: weights_only=True reads Python's own types.
        if types := get_unsafe_globals_in_checkpoint(unchecked):
            unchecked.unlink()
            raise UserError(
                f"no resume could read {', '.join(types)} from this checkpoint; "
                "give save_hyperparameters() plain numbers and texts"
            )
        unchecked.replace(path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint. Raises UserError if it is damaged."""
        checkpoint = read_checkpoint(Path(path))
        # ModelCheckpoint forgets the best score if the run's folder was moved: the next epoch would
        # then replace best.ckpt, however bad it is.
        for state in checkpoint.get("callbacks", {}).values():
            if "dirpath" in state:
                state["dirpath"] = str(Path(path).resolve().parent)
        return checkpoint
