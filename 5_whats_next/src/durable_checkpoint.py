"""Lightning's checkpoints, written as ``checkpoint_files`` does, and checked when they are read."""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from src.checkpoint_files import check, save_durably
from src.errors import UserError
from src.lightning_checkpoint import AtomicCheckpointIO
from src.lightning_ranks import SharedError


class DurableCheckpointIO(AtomicCheckpointIO):
    """Keeps two versions of each checkpoint, and a digest that tells a damaged one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *_: Any, **__: Any) -> None:
        """Raises UserError if the disk is full; the older versions are intact."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_durably(checkpoint, path, int(checkpoint.get("global_step", 0)))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Raises SharedError if the file is damaged: all ranks read the same one."""
        path = Path(path)
        try:
            if path.is_file():
                check(path)
        except UserError as error:
            raise SharedError(str(error)) from error
        checkpoint = super().load_checkpoint(path, *args, **kwargs)
        move(checkpoint, path.absolute().parent)
        return checkpoint


class InsideCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint that saves inside of epochs, and leaves their last step to others.

    A checkpoint from between an epoch's last step and its validation counts as after it: a run that
    was killed in the validation would go on without that epoch's scores.
    """

    def on_train_batch_end(self, trainer: L.Trainer, *arguments: Any, **settings: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            return
        super().on_train_batch_end(trainer, *arguments, **settings)


def move(checkpoint: dict[str, Any], folder: Path) -> None:
    """Tell ModelCheckpoint that its files are in ``folder``.

    A run that goes on in another place, such as a copy from the cloud on another machine, would
    forget which checkpoint was the best: Lightning drops the score when the path has changed.
    """
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(state, dict) and "best_model_path" in state and "dirpath" in state:
            state["dirpath"] = str(folder)
            for name in ("best_model_path", "kth_best_model_path", "last_model_path"):
                if state.get(name):
                    state[name] = str(folder / Path(state[name]).name)
            state["best_k_models"] = {
                str(folder / Path(name).name): score
                for name, score in state.get("best_k_models", {}).items()
            }
