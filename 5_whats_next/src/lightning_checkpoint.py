"""Checkpoints that are written whole or not at all, and one line for those that cannot be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO

from src.checkpoint import save_atomic
from src.errors import UserError
from src.lightning_ranks import SharedError


@contextmanager
def readable(path: str | Path, error: type[UserError] = UserError) -> Iterator[None]:
    """Turn whatever goes wrong while a checkpoint is read into one line.

    A damaged file can fail in the zip reader, in the unpickler or anywhere below.
    """
    try:
        yield
    except Exception as cause:
        reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise error(f"{path} is truncated or not a checkpoint ({reason})") from cause


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints as chapter 0 does: whole or not at all.

    Lightning's own way stages the file in TMPDIR and moves it. Where that is another filesystem,
    a crash during the move destroys the last good checkpoint
    (https://github.com/Lightning-AI/pytorch-lightning/issues/21253).
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *_: Any, **__: Any) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_atomic(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Raises SharedError if the file is no checkpoint: all ranks read the same one."""
        with readable(path, SharedError):
            checkpoint = super().load_checkpoint(path, *args, **kwargs)
            if "pytorch-lightning_version" not in checkpoint:
                raise ValueError("it is not one of Lightning's")
            return checkpoint
