"""A second file in the same folder, forced to the disk, and only then the rename."""

import os
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint."""
    temporary = path.with_name(path.name + ".tmp")  # same folder: a rename, and never a copy
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()  # from Python to the system: survives a kill
        os.fsync(file.fileno())  # from the system to the disk: survives a power cut
    temporary.replace(path)
