"""A checkpoint that a crash cannot tear.

``save`` stages the checkpoint in $TMPDIR and moves it, which looks safe. In a container $TMPDIR is
another file system, and then a move is a copy. Ask of each call what is on the disk if it is the
last one: after a kill, and after a power cut, which loses what was never forced to the disk. At
each moment a whole file shall have the name ``path``: the old one or the new one.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint."""
    with tempfile.TemporaryDirectory() as staging:
        temporary = Path(staging) / path.name
        torch.save(state, temporary)
        shutil.move(temporary, path)
